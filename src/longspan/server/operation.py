"""What an operator changes while the server runs."""

from __future__ import annotations

import ipaddress

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from longspan.errors import RequestError
from longspan.server.service import Service

_PASSED_ON = frozenset(("forwarded", "x-forwarded-for", "x-real-ip", "via"))


class OperatorError(RequestError):
    """Whoever asks may not change the ring."""

    status = 403

    def __init__(self) -> None:
        super().__init__(
            "A server without API keys lets only its own machine change the ring. Ask from there, or start it with "
            "--api-key-file.",
            code="operator_only",
        )


class OperatorEndpoints:
    """Behind the API keys where there are some; else for this machine only."""

    def __init__(self, service: Service, *, keys: bool) -> None:
        """keys: whether whoever comes as far as this has shown one."""
        self._service = service
        self._keys = keys

    def routes(self) -> list[Route]:
        """Where they are."""
        return [Route("/ring/stages/{name:path}", self.remove_stage, methods=["DELETE"])]

    async def remove_stage(self, http: Request) -> Response:
        """DELETE /ring/stages/NAME: send a stage that has joined away; a spare takes its place."""
        if not self._keys and not _local(http):
            raise OperatorError
        await self._service.engine.remove_stage(http.path_params["name"])
        return Response(status_code=204)


def _local(http: Request) -> bool:
    if not _PASSED_ON.isdisjoint(http.headers.keys()):
        return False  # a proxy of this machine brings whom it likes
    try:
        return http.client is not None and ipaddress.ip_address(http.client.host).is_loopback
    except ValueError:
        return False
