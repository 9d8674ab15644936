"""How questions begin: seeds for conversations that the model then writes itself.

A model that is asked for a user's turn out of nothing comes back to few of them. A few words at the beginning lead
it to other places, and what they lead to is still its own text.
"""

from __future__ import annotations

import random

_BARE = (
    "What", "What is", "What are", "What does", "What would happen if", "How", "How do I", "How can I", "How does",
    "How many", "Why", "Why is", "Why do", "Who", "Who was", "When", "Where", "Which", "Can you", "Could you",
    "Please", "Is it", "Are there", "Should I", "Tell me", "Explain", "Describe", "Write", "Write a", "Give me",
    "List", "Create", "Compare", "Summarize", "Translate", "Calculate", "Solve", "Suppose", "Imagine", "I want to",
    "I have", "I am", "My", "If", "In", "The", "Here is", "Hello", "Thanks", "Given the following", "Rewrite",
    "Correct", "Classify", "Convert", "Find", "Design", "Suggest", "Help me", "Let's", "You are",
)  # fmt: skip
_FRAMES = (
    "What is {}", "What are the main causes of {}", "What should I know about {}", "How does {} work",
    "How do I get better at {}", "How did {} change over time", "Why is {} important", "Why do people like {}",
    "Explain {} in simple words", "Explain {} to a child", "Describe {}", "Write a short story about {}",
    "Write a poem about {}", "Write an email about {}", "Write a Python function for {}", "Write an essay on {}",
    "Write a dialogue about {}", "Write a list of facts about {}", "Give me three tips for {}",
    "Give me an example of {}", "Compare {} with {}", "What is the difference between {} and {}",
    "Summarize the history of {}", "Make a plan for {}", "Suggest a title for a book about {}",
    "What are the advantages and disadvantages of {}", "Tell me a joke about {}", "Who is known for {}",
    "Is {} better than {}", "I am learning about {}. Where", "I have a question about {}:",
    "Can you help me with {}", "Create a quiz about {}", "Plan a lesson about {}", "Argue for and against {}",
    "In which countries is {}", "How much does {}", "Translate a sentence about {} into",
)  # fmt: skip
_TOPICS = (
    "photosynthesis", "gravity", "the water cycle", "volcanoes", "the moon", "black holes", "atoms", "electricity",
    "magnets", "vaccines", "the human heart", "sleep", "nutrition", "running", "yoga", "chess", "football",
    "swimming", "hiking", "camping", "gardening", "baking bread", "tomato soup", "pasta", "coffee", "tea", "cheese",
    "chocolate", "a birthday party", "a wedding", "a job interview", "working from home", "saving money", "taxes",
    "a small business", "marketing", "the stock market", "inflation", "insurance", "renting a flat", "a used car",
    "bicycles", "trains", "airplanes", "ships", "bridges", "skyscrapers", "Paris", "Tokyo", "Egypt", "Brazil",
    "the Alps", "the ocean", "rain forests", "deserts", "climate change", "recycling", "solar energy", "wind power",
    "the French Revolution", "ancient Rome", "the Middle Ages", "the Silk Road", "the printing press",
    "the first computers", "the internet", "smartphones", "social media", "video games", "robots",
    "neural networks",
    "sorting a list", "binary search", "recursion", "prime numbers", "fractions", "geometry", "probability",
    "statistics", "a linear equation", "calculus", "regular expressions", "a database", "SQL", "Git", "Linux",
    "TCP and UDP", "web servers", "encryption", "passwords", "JavaScript", "Rust", "unit tests", "code review",
    "grammar", "commas", "learning Spanish", "public speaking", "writing a novel", "poetry", "Shakespeare",
    "fairy tales", "a lighthouse keeper", "a dragon", "a lost dog", "time travel", "a detective", "friendship",
    "honesty", "courage", "happiness", "anger", "grief", "stress", "habits", "memory", "creativity", "teamwork",
    "leadership", "a difficult customer", "a thank-you note", "an apology", "a complaint", "a day off", "school",
    "homework", "university", "a museum", "painting", "photography", "the piano", "jazz", "opera", "movies",
    "theatre", "fashion", "cats", "dogs", "bees", "whales", "birds", "dinosaurs", "mushrooms", "trees", "roses",
    "cooking for ten people", "a healthy breakfast", "a vegan dinner", "first aid", "a headache", "allergies",
    "the immune system", "genetics", "evolution", "chemistry at home", "plate tectonics", "weather forecasts",
    "democracy", "elections", "human rights", "philosophy", "ethics", "religion", "holidays", "a road trip",
    "packing a suitcase", "time zones", "maps", "calendars", "puzzles", "riddles", "magic tricks",
    "a treasure hunt",
)  # fmt: skip
_SHARE_OF_NOTHING = 0.15
_SHARE_OF_BARE = 0.45


def openers(count: int, seed: int) -> list[str]:
    """Beginnings of `count` questions: a whole thought, a few words, or nothing at all. The same for a seed."""
    choose = random.Random(seed)
    return [_opener(choose) for _ in range(count)]


def _opener(choose: random.Random) -> str:
    kind = choose.random()
    if kind < _SHARE_OF_NOTHING:
        return ""
    if kind < _SHARE_OF_NOTHING + _SHARE_OF_BARE:
        return choose.choice(_BARE)
    frame = choose.choice(_FRAMES)
    return frame.format(*choose.sample(_TOPICS, frame.count("{}")))
