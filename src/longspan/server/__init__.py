"""HTTP: bodies in, events out."""

from longspan.server.application import create_app
from longspan.server.options import ServerOptions
from longspan.server.runner import serve

__all__ = ["ServerOptions", "create_app", "serve"]
