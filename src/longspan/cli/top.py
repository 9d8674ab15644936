"""`longspan top`: the dashboard in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from longspan.cli.output import print_json
from longspan.cli.server_options import SERVER_URL, ApiKey
from longspan.errors import LongspanError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from longspan.server.dashboard.frame import DashboardFrame

MOST_REQUESTS = 20
SILENCE_SECONDS = 15.0


def top(
    *,
    url: str = SERVER_URL,
    api_key: ApiKey = "",
    once: bool = False,
    json: bool = False,
) -> None:
    """Watch a server: its ring, its figures and what runs, twice a second, until Ctrl-C.

    Where the output is no terminal, one look is printed.

    For example:

        longspan top
        longspan top --url http://first.example:8080 --once
        longspan top --json

    Parameters
    ----------
    url
        The server.
    api_key
        A key, if it asks for one.
    once
        Print one look and end.
    json
        Print one look as JSON and end.
    """
    frames = _frames(url.rstrip("/"), api_key)
    if json:
        print_json(next(frames))
        return
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if once or not sys.stdout.isatty():
        console.print(picture(next(frames)))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for frame in frames:
            live.update(picture(frame), refresh=True)


def picture(frame: DashboardFrame) -> RenderableType:
    """One frame for a terminal."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    figures = frame.figures
    state = Text("ready", "green") if frame.ready.ready else Text(" ".join(frame.ready.missing), "bold red")
    title = Text.assemble(("Longspan ", "bold"), frame.model, "  ", state)

    def table(*headings: str) -> Table:
        made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in headings:
            made.add_column(heading, justify="left" if heading in ("state", "address") else "right")
        return made

    now = table("tokens/s", "running", "waiting", "KV", "in flight", "useful", "stale", "a trip", "error", "guard")
    now.add_row(
        f"{figures.tokens_per_second:.1f}",
        f"{figures.running}/{figures.slots}",
        str(figures.waiting),
        f"{figures.kv_usage:.0%}",
        str(figures.in_flight),
        _number(figures.useful_rows),
        _number(figures.stale_rows),
        _number(figures.tokens_per_traversal, 2),
        "–" if figures.prediction_error is None else f"{figures.prediction_error:.0%}",
        figures.guard or "–",
    )
    stages = table("stage", "layers", "state", "address", "round trip ms", "compute ms", "busy")
    for stage in frame.ring.stages:
        layers = f"{stage.start}-{stage.end}"
        figures_of = (_number(stage.round_trip_ms), _number(stage.compute_ms), f"{busy(frame, stage.index):.0%}")
        stages.add_row(str(stage.index), layers, stage.state, stage.address, *figures_of)
    requests = table("request", "state", "prompt", "cached", "generated", "of", "tokens/s", "age s")
    for request in frame.requests[:MOST_REQUESTS]:
        requests.add_row(
            str(request.sequence),
            request.state,
            str(request.prompt_tokens),
            str(request.cached_tokens),
            str(request.generated_tokens),
            str(request.max_tokens),
            _number(request.tokens_per_second),
            _number(request.seconds),
        )
    more = len(frame.requests) + frame.hidden_requests - MOST_REQUESTS
    accepted = ", ".join(f"{share:.0%}" for share in figures.accepted) or "no drafts yet"
    parts: list[RenderableType] = [title, now, stages, f"drafts that came true, by place: {accepted}", requests]
    if more > 0:
        parts.append(f"and {more} more")
    return Group(*parts)


def busy(frame: DashboardFrame, stage: int) -> float:
    """Share of the shown seconds in which a stage computed."""
    seconds = frame.shown_seconds
    worked = sum(
        max(0.0, min(frame.now, trip.work[stage][1]) - max(frame.now - seconds, trip.work[stage][0]))
        for trip in frame.trips
        if stage < len(trip.work)
    )
    return min(1.0, worked / seconds)


def _frames(url: str, api_key: str) -> Iterator[DashboardFrame]:
    """Frames as they come. Raises LongspanError when the server cannot be watched."""
    import httpx
    import msgspec

    from longspan.server.dashboard.frame import DashboardFrame

    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with httpx.stream("GET", f"{url}/dashboard/events", headers=headers, timeout=SILENCE_SECONDS) as response:
            if response.status_code != 200:
                response.read()
                raise LongspanError(f"{url} answered {response.status_code}: {response.text[:300]}")
            for line in response.iter_lines():
                if line.startswith("data: "):
                    data = line.removeprefix("data: ")
                    if data.startswith('{"error"'):
                        raise LongspanError(f"{url}: {msgspec.json.decode(data)['error']}")
                    yield msgspec.json.decode(data, type=DashboardFrame)
    except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError) as error:
        raise LongspanError(f"{url} cannot be watched: {error or type(error).__name__}") from error
    raise LongspanError(f"{url} has ended")


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
