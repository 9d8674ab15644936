"""Prompts of `longspan bench wan`: texts that a model goes on repeating, and texts that it makes up."""

from __future__ import annotations

from collections.abc import Sequence

from longspan.errors import UsageError
from longspan.model.chat_template import ChatTemplate
from longspan.model.tokenizer import Tokenizer

TEXTS = ("copy", "edit", "code", "prose")
"""copy: a raw passage, six times, and how it begins again; the model goes on with it. edit: the same with a year
that changes from one repeat to the next. code, prose: answers to chat prompts. Copied and novel texts are never
blended in one figure."""

MOST_REQUESTS = 8
"""Different prompts of each text."""

_PASSAGES = (
    "The old lighthouse on the northern cliff has guided ships through storm and fog "
    "for more than two hundred years. ",
    "The night train leaves the city at ten and reaches the sea in the morning, when "
    "the harbour is still asleep and quiet. ",
    "The clock on the tower was made by two brothers and has kept good time through "
    "wars and floods for three centuries. ",
    "The school in the valley has a large garden where the children grow beans and "
    "apples and learn how to keep bees. ",
    "The garden behind the museum is open in the summer, and visitors may sit under "
    "the trees until the bell rings. ",
    "The market in the main square sells fish and flowers and cheese from the "
    "mountains on every second Saturday of the month. ",
    "The library keeps its oldest books in a cool room in the cellar, where the light is dim and the air is dry. ",
    "The bridge over the gorge was built by soldiers in a single year and has been painted green ever since then. ",
)
"""The demo model goes on with each of them word for word."""

_COPIES = 6
_BEGINNING_WORDS = 3

_YEARS = (
    "In {0} the harbour is quiet. The boats leave early, the boats of {0} return "
    "late, and nobody speaks of the storm.\n",
    "In {0} the farm does well. The cows give plenty of milk, and the hens of {0} "
    "lay more eggs than ever before.\n",
    "In {0} the library buys new books. The readers of {0} borrow most of them "
    "within a week and bring them back late.\n",
    "In {0} the railway is extended. The trains of {0} run every hour and stop at "
    "all stations between the two cities.\n",
    "In {0} the museum opens its doors. The visitors of {0} come from many countries and stay until the evening.\n",
    "In {0} the orchestra travels abroad. The concerts of {0} are sold out within "
    "hours, and the critics praise the soloists.\n",
    "In {0} the bridge is painted. The workers of {0} hang on long ropes, and the "
    "painters start again at the first pillar.\n",
    "In {0} the factory hires engineers. The machines of {0} run day and night, and "
    "the old hall is too small for all of them.\n",
)
_FIRST_YEAR, _LAST_YEAR = 2007, 2012

_CODE = (
    "Write a Python function that returns the n-th Fibonacci number, and explain it.",
    "Write a Python class for a bank account with deposit, withdraw and a list of all transactions.",
    "Write a Python program that reads a file and counts how often each word occurs.",
    "Write a Python function that checks whether a string is a palindrome, with tests.",
    "Write a Python class for a stack, with push, pop and peek, and show how to use it.",
    "Write a Python function that sorts a list with merge sort, and explain each step.",
    "Write a Python script that asks for a number and prints its multiplication table.",
    "Write a Python function that finds all prime numbers up to n, and explain it.",
)
_PROSE = (
    "Write an email to my manager asking for a day off next Friday.",
    "Explain in simple words how photosynthesis works.",
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "What are the main differences between TCP and UDP?",
    "Give me three tips for staying healthy while working from home.",
    "Describe a walk through a forest in autumn.",
    "Summarize the plot of Romeo and Juliet.",
    "Explain why the sky is blue to a child of eight years.",
)

RUN = 8
"""Tokens; an answer repeats itself where so many in a row were there before."""


def prompts(text: str, tokenizer: Tokenizer, template: ChatTemplate | None) -> list[tuple[int, ...]]:
    """MOST_REQUESTS prompts of one of TEXTS, as token ids. Raises UsageError when a chat template is missing."""
    if text in ("copy", "edit"):
        raw = [_repeated(p) for p in _PASSAGES] if text == "copy" else [_with_years(body) for body in _YEARS]
        return [tuple(tokenizer.encode(prompt, add_special=True, parse_special=False)) for prompt in raw]
    if template is None:
        raise UsageError(f"the text {text!r} is made of chat prompts, but the model has no chat template")
    return [
        tuple(
            tokenizer.encode(
                template.render([{"role": "user", "content": prompt}], add_generation_prompt=True),
                add_special=False,
                parse_special=True,
            )
        )
        for prompt in (_CODE if text == "code" else _PROSE)
    ]


def repeated_share(prompt: Sequence[int], answer: Sequence[int]) -> float:
    """The share of an answer's tokens that stand in a run of RUN tokens which was there before."""
    tokens = (*prompt, *answer)
    seen: set[tuple[int, ...]] = set()
    repeated = [False] * len(tokens)
    for end in range(RUN, len(tokens) + 1):
        run = tokens[end - RUN : end]
        if run in seen:
            repeated[end - RUN : end] = [True] * RUN
        seen.add(run)
    of_answer = repeated[len(prompt) :]
    return sum(of_answer) / len(of_answer) if of_answer else 0.0


def _repeated(passage: str) -> str:
    """The passage several times, and its first words: not a space behind it, which no repeat has at that place."""
    return _COPIES * passage + " ".join(passage.split()[:_BEGINNING_WORDS])


def _with_years(body: str) -> str:
    """The passage for one year after the other, and how the next one begins."""
    repeats = "".join(body.format(year) for year in range(_FIRST_YEAR, _LAST_YEAR))
    return repeats + body.partition(" {0}")[0]
