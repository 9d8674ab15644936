"""What is measured: a command, what it is about, and what of its answer is shown where."""

from __future__ import annotations

from typing import NamedTuple

Path = tuple[str | int, ...]
"""A way through JSON: keys, indices, or "key=value" picking a row of a list. Several of these in a row narrow one
list."""


class Figure(NamedTuple):
    """One line of the README's table. noise: where the share stands by which repeats differ, if the command gives
    it."""

    text: str
    path: Path
    form: str
    noise: Path = ()


class Lines(NamedTuple):
    """A picture: y over x, a line for each value of `by` or, without, for each key of `ys`; a panel for each value
    of `panel`."""

    rows: Path
    x: str
    ys: tuple[str, ...]
    by: str = ""
    panel: str = ""
    logarithmic: bool = False


class Bars(NamedTuple):
    """A picture: a group of bars for each row, a bar for each key. labels: what names a row; of rows that are one
    object, the keys name themselves."""

    rows: Path
    labels: tuple[str, ...]
    values: tuple[str, ...]


class Heat(NamedTuple):
    """A picture: a field for every x and y, the darker the more."""

    rows: Path
    x: str
    y: str
    value: str


class Flame(NamedTuple):
    """A picture: what `longspan bench profile --picture` draws."""


Picture = Lines | Bars | Heat | Flame


class Measurement(NamedTuple):
    """One result. about: sentences for a person who reads its page. hidden: keys that its page leaves out."""

    name: str
    title: str
    about: str
    command: str
    figures: tuple[Figure, ...] = ()
    picture: Picture | None = None
    hidden: tuple[str, ...] = ()
