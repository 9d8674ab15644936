"""`longspan keys …`: certificates and tokens of a ring over several machines."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.output import format_table, print_json

if TYPE_CHECKING:
    from longspan.ring.identity import Role
    from longspan.ring.keys import NodeFiles

Days = Annotated[float, Parameter(validator=Number(gt=0, lte=36_500))]


def keys_init(
    directory: Path,
    /,
    *,
    stages: str = "first,second",
    coordinator: str = "coordinator",
    days: Days = 365,
    json: bool = False,
) -> None:
    """Make a small certificate authority, and the keys of every node of a ring.

    The directory gets one directory for each node. Copy it to that node, and
    nothing else: whoever has authority.key can make nodes of his own.

    For example:

        longspan keys init keys
        longspan keys init keys --stages garage,attic,office --days 90

    Parameters
    ----------
    directory
        Where the keys go.
    stages
        Names of the stages, with commas between them.
    coordinator
        Name of the coordinator.
    days
        How long the certificates of the nodes are valid. The authority's is, for ten years.
    json
        Print the nodes as JSON.
    """
    from longspan.ring.keys import create_authority, create_node

    names = [name.strip() for name in stages.split(",") if name.strip()]
    create_authority(directory)
    made = [create_node(directory, coordinator, "coordinator", days)]
    made += [create_node(directory, name, "stage", days) for name in names]
    _tell(made, json=json)


def keys_add(
    directory: Path,
    name: str,
    /,
    *,
    coordinator: bool = False,
    days: Days = 365,
    json: bool = False,
) -> None:
    """Make the keys of one more node, or new ones for a node whose certificate expires.

    For example:

        longspan keys add keys cellar
        longspan keys add keys coordinator --coordinator --days 30

    Parameters
    ----------
    directory
        Where keys init has put the authority.
    name
        Name of the node.
    coordinator
        Let it give work to stages; otherwise it is a stage.
    days
        How long the certificate is valid.
    json
        Print the node as JSON.
    """
    from longspan.ring.keys import create_node

    role: Role = "coordinator" if coordinator else "stage"
    _tell([create_node(directory, name, role, days)], json=json)


def keys_show(directory: Path, /, *, json: bool = False) -> None:
    """Show the nodes of an authority: names, fingerprints, and how long they are valid.

    For example:

        longspan keys show keys
        longspan keys show keys --json

    Parameters
    ----------
    directory
        Where keys init has put the authority.
    json
        Print the nodes as JSON.
    """
    from longspan.ring.keys import nodes_of

    _tell(nodes_of(directory), json=json)


def keys_token(file: Path, /) -> None:
    """Make a secret that all nodes of a ring share: simpler than certificates, and all nodes have equal rights.

    Copy the file to every node, and give it to stage and serve with
    --token-file.

    For example:

        longspan keys token ring.token

    Parameters
    ----------
    file
        Where the secret goes; only you can read it.
    """
    from longspan.ring.keys import create_token

    create_token(file)
    print(file)


def _tell(nodes: list[NodeFiles], *, json: bool) -> None:
    if json:
        print_json(
            [
                {
                    "name": node.identity.name,
                    "role": node.identity.role,
                    "fingerprint": node.identity.fingerprint,
                    "expires": node.expires.isoformat(),
                    "directory": str(node.certificate.parent),
                }
                for node in nodes
            ]
        )
        return
    now = datetime.datetime.now(datetime.UTC)
    rows = [
        (
            f"{node.identity.role} {node.identity.name}" if node.identity.role == "stage" else node.identity.name,
            node.identity.fingerprint,
            "expired" if node.expires <= now else f"{(node.expires - now).days} days",
        )
        for node in nodes
    ]
    print(format_table(("node", "fingerprint (SHA-256)", "valid for"), rows))
