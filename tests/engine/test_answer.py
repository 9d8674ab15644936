"""What the engine counts of an answer."""

from __future__ import annotations

from pathlib import Path

from longspan.engine.answer import Answer
from longspan.engine.stream import RequestStream
from longspan.model.tokenizer import Tokenizer
from longspan.request import DraftFigures, GenerationRequest
from longspan.schedule.events import TokensCommitted
from tests.tiny_models import write_tiny_model


async def test_drafts_are_counted_by_the_windows_that_brought_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write_tiny_model(tmp_path / "tiny.gguf", "llama", layers=1))
    stream = RequestStream(lambda stream: None)
    answer = Answer(GenerationRequest((1, 2), 20), frozenset({2}), tokenizer, stream, 0.0)
    answer.push(TokensCommitted(0, (5,)), 1.0)  # behind the prompt
    assert answer.timings().drafts is None
    answer.push(TokensCommitted(0, (6,), rows=1), 2.0)
    assert answer.timings().drafts is None, "a row without drafts says nothing about drafts"
    for tokens, rows in (((7, 8, 9), 4), ((10,), 4), ((11, 12), 2)):
        answer.push(TokensCommitted(0, tokens, rows=rows), 3.0)
    assert answer.timings().drafts == DraftFigures(windows=4, drafts=7, accepted=3, histogram=(2, 1, 1))
    assert answer.timings().generated_tokens == 8
