"""`longspan ring …`: the ring of a server that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from longspan.cli.output import format_table, print_json
from longspan.cli.ring_table import ring_table
from longspan.cli.server_options import SERVER_URL, ApiKey
from longspan.errors import LongspanError

if TYPE_CHECKING:
    import httpx

ANSWER_SECONDS = 15.0


def ring_show(*, url: str = SERVER_URL, api_key: ApiKey = "", json: bool = False) -> None:
    """Show the stages of a server, and which stages have joined it.

    For example:

        longspan ring show
        longspan ring show --url http://first.example:8080 --json

    Parameters
    ----------
    url
        The server.
    api_key
        A key, if it asks for one.
    json
        Print what the server says as JSON.
    """
    import msgspec

    from longspan.status import RingStatus

    ring = msgspec.json.decode(_answer("GET", url, "/ring", api_key).content, type=RingStatus)
    if json:
        print_json(ring)
        return
    print(ring_table(ring))
    if ring.members:
        rows = ((one.name, "spare" if one.stage is None else one.stage, one.address) for one in ring.members)
        print(f"\n{format_table(('joined', 'stage', 'address'), rows)}")


def ring_remove(name: str, /, *, url: str = SERVER_URL, api_key: ApiKey = "", json: bool = False) -> None:
    """Send a stage that has joined away; a spare takes its place.

    Running requests go on in the new ring. The process of the stage ends;
    started again, it joins again. Without API keys a server takes this only
    from its own machine.

    For example:

        longspan ring remove attic
        longspan ring remove attic --url http://first.example:8080

    Parameters
    ----------
    name
        Its name, as longspan ring show has it.
    url
        The server.
    api_key
        A key, if it asks for one.
    json
        Print the name as JSON.
    """
    _answer("DELETE", url, f"/ring/stages/{quote(name, safe='')}", api_key)
    if json:
        print_json({"removed": name})
    else:
        print(f"stage {name} is removed")


def _answer(method: str, url: str, path: str, api_key: str) -> httpx.Response:
    """What the server answers. Raises LongspanError with its words when it refuses or cannot be asked."""
    import httpx

    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        answer = httpx.request(method, f"{url.rstrip('/')}{path}", headers=headers, timeout=ANSWER_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise LongspanError(f"{url} cannot be asked: {error or type(error).__name__}") from error
    if answer.is_success:
        return answer
    try:
        words = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        words = answer.text[:300]
    raise LongspanError(f"{url} answered {answer.status_code}: {words}")
