"""Options of the commands that ask a server which runs."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

SERVER_URL = "http://127.0.0.1:8080"
"""Where `longspan serve` listens unless it is told otherwise."""

ApiKey = Annotated[str, Parameter(env_var="LONGSPAN_API_KEY")]
"""What the server asks for, if it asks for a key at all."""
