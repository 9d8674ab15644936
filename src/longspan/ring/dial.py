"""Opening links over TCP."""

from __future__ import annotations

import asyncio
import os
import socket
import time

from longspan.errors import RingError
from longspan.ring.identity import Role
from longspan.ring.security import Security
from longspan.ring.tcp import TcpLink


async def dial(host: str, port: int, timeout: float, security: Security, role: Role) -> TcpLink:
    """Open a link to a `role`, both ends having shown who they are. Raises RingError within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    link = await connect(host, port, timeout, role)
    try:
        async with asyncio.timeout(max(0.1, deadline - time.monotonic())):
            await security.approach(link, role)
    except TimeoutError:
        link.abort()
        raise RingError(
            f"{host}:{port} did not finish its handshake within {timeout:g} s. Is it a stage, and of this ring?"
        ) from None
    except BaseException:
        link.abort()
        raise
    return link


async def connect(host: str, port: int, timeout: float, role: Role = "stage") -> TcpLink:
    """Open a link. Raises RingError that names the address when nobody answers within `timeout` seconds."""
    link = TcpLink()
    connected = False
    expected = "longspan stage --listen" if role == "stage" else "longspan serve --join"
    try:
        # Not wait_for: before Python 3.12 it may answer a cancellation with a result or with another error.
        async with asyncio.timeout(timeout):
            await asyncio.get_running_loop().create_connection(lambda: link, host, port)
        connected = True
    except TimeoutError:
        raise RingError(
            f"no answer from {host}:{port} within {timeout:g} s. Is `{expected}` running there, "
            "and does the firewall let the port through?"
        ) from None
    except OSError as error:
        raise RingError(f"cannot reach {host}:{port}: {_reason(error)}. Is `{expected}` running there?") from None
    except (ValueError, OverflowError) as error:
        # A name that no host can have, or a port that does not exist.
        raise RingError(f"cannot reach {host}:{port}: this is not an address ({error})") from None
    finally:
        if not connected:
            link.abort()  # nobody else knows of it
    return link


def _reason(error: OSError) -> str:
    """The system's own words; asyncio puts others in their place."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)
