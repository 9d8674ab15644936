"""From options to a ring: which layers where, and the local processes that hold them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection
from pathlib import Path

from longspan.engine.gathering import Gathering
from longspan.engine.locking import locked, locked_names
from longspan.engine.options import DEFAULT_CONTEXT, EngineOptions
from longspan.errors import UnknownStageError, UsageError
from longspan.model.mtp_head import MtpHead, check_belongs, find_head, read_head
from longspan.model.nextn import has_head, obstacle
from longspan.model.source import ModelSource
from longspan.model.splits import even_splits, parse_splits
from longspan.ring.artifact_source import ArtifactSource
from longspan.ring.launcher import LocalLauncher, StageHandle
from longspan.ring.llama_loader import default_threads
from longspan.ring.ring_plan import RingPlan, StagePlace, parse_address, ring_name
from longspan.ring.security import OPEN, Security, check_exposure, load_security
from longspan.ring.stage_process import StageOptions
from longspan.status import MemberStatus

HEADED = frozenset(("auto", "mtp", "mtp+ngram"))
"""Proposers that use the drafts of an MTP head."""


class Formation:
    """Knows how to make a ring plan for one engine, as often as the ring has to form.

    ranges: layers of each stage. threads: of each local stage. security: of links to stages elsewhere.
    on_return: is told when a stage that has joined, and has layers, came back as another process.
    """

    def __init__(self, options: EngineOptions, source: ModelSource) -> None:
        self._options = options = locked(options, source)
        self._source = source
        self._remote = tuple(parse_address(address) for address in options.ring)
        self.security = self._security()
        self.artifacts = ArtifactSource(source)
        self.ranges = self._ranges()
        self.on_return: Callable[[str], None] = lambda reason: None
        self._gathering = self._gather()
        for start, end in self.ranges:
            source.check_range(start, end)
        description = source.description
        if options.activation_dtype not in description.activation_dtypes:
            raise UsageError(
                f"activations in {options.activation_dtype} would change the results of {description.architecture} "
                f"(mixture-of-experts routing); use {' or '.join(description.activation_dtypes)}"
            )
        longest = description.context_length
        if options.context is not None and options.context > longest:
            raise UsageError(f"a context of {options.context} positions is asked for, the model has {longest}")
        # Why the model's own MTP layers are not used although drafts are wanted of them; said once.
        self._head = self._named_head()
        others = self._head is not None or find_head(source) is not None
        self._head_obstacle = obstacle(source) if self.drafts and not others else ""
        if self.trees and self._head is None and not has_head(source):
            raise UsageError(
                "trees of drafts (--latency tree) need an MTP head, and Longspan has none for "
                f"{description.model_id}; leave --latency away"
            )
        self.context = options.context or min(longest, DEFAULT_CONTEXT)
        self.local_stages = 0 if self._elsewhere else len(self.ranges)
        # With one span in flight, stages of one machine take turns.
        at_once = 1 if self.trees else max(1, self.local_stages)
        self.threads = options.threads or default_threads(at_once)
        self._launcher = LocalLauncher(standby=True)
        self._children: dict[int, StageHandle] = {}
        self._coordinator = secrets.token_hex(8)

    @property
    def drafts(self) -> bool:
        """Whether the last stage shall have an MTP head at hand."""
        return self._options.proposer in HEADED or self.trees

    @property
    def mtp_head(self) -> Path | bool:
        """What drafts on the last stage, as `LlamaLoader` takes it."""
        return self._head.path if self._head is not None else self.drafts

    @property
    def trees(self) -> bool:
        """Whether drafts are token trees, of one request at a time."""
        return self._options.latency == "tree"

    @property
    def holds_first(self) -> bool:
        """Whether the first stage runs in this process."""
        return self._options.hold_first_stage or (not self._elsewhere and len(self.ranges) == 1)

    @property
    def patient(self) -> bool:
        """Whether the first ring is waited for however long it takes: its stages come when they want."""
        return self._options.join is not None

    @property
    def _elsewhere(self) -> bool:
        """Whether stages are somebody else's processes."""
        return bool(self._remote) or self._options.join is not None

    async def plan(self, report: Callable[[str], None]) -> RingPlan:
        """Start the local stages that are not running, and say where everything is. Raises RingError."""
        if self._head_obstacle:
            report(f"the MTP layers of the model draft nothing: {self._head_obstacle}")
            self._head_obstacle = ""
        wanted = [] if self._elsewhere else range(1 if self.holds_first else 0, len(self.ranges))
        missing = [index for index in wanted if index not in self._children or not self._children[index].running]
        if missing:
            report(f"starting {len(missing)} stage process{'es' if len(missing) > 1 else ''}")
            # Composed here once, so that the children find their files instead of each reading the whole model.
            for index in missing:
                await asyncio.to_thread(self._source.stage_file, *self.ranges[index])
            started = await asyncio.gather(*(self._start(index) for index in missing), return_exceptions=True)
            # All of them have started or failed by now, so that `stop` finds every child there is.
            for failure in started:
                if failure is not None:
                    raise failure
        addresses: list[tuple[str, int] | None] = list(self._remote)
        if self.holds_first:
            addresses.insert(0, None)
        if self._gathering is not None:
            addresses += [member.address for member in await self._gathering.seats(report)]
        elif not self._remote:
            addresses += [self._children[index].address for index in wanted]
        local = not self._elsewhere
        places = tuple(
            StagePlace(index, start, end, address, near=address is None or (local and index == 0))
            for index, ((start, end), address) in enumerate(zip(self.ranges, addresses, strict=True))
        )
        options = self._options
        return RingPlan(
            ring_name(self._coordinator),
            places,
            1 if self.trees else options.slots,
            self.context,
            options.activation_dtype,
            options.link_delay_ms,
            self.trees,
            self._head.digest if self._head is not None else "",
        )

    async def replace(self, stages: Collection[int]) -> None:
        """End the local processes of these stages, which do not answer; `plan` starts others in their place."""
        children = [self._children.pop(index) for index in stages if index in self._children]
        await asyncio.gather(*(child.stop() for child in children))

    async def stop(self) -> None:
        """End the local stages."""
        children, self._children = self._children, {}
        await asyncio.gather(*(child.stop() for child in children.values()))
        await self._launcher.close()
        if self._gathering is not None:
            await self._gathering.close()

    def members(self) -> tuple[MemberStatus, ...]:
        """Stages that have joined by themselves; may be called from any thread."""
        return () if self._gathering is None else self._gathering.members()

    async def remove(self, name: str) -> bool:
        """Send a stage that has joined away for good; whether it had layers. Raises UnknownStageError."""
        if self._gathering is None:
            raise UnknownStageError("stages do not join this ring by themselves, so none can be removed")
        return await self._gathering.remove(name)

    def _named_head(self) -> MtpHead | None:
        """The head that the options name, checked. Raises UsageError when nothing would use it."""
        if self._options.mtp_head is None:
            return None
        if not self.drafts:
            raise UsageError(
                f"an MTP head is named, but the proposer {self._options.proposer!r} uses none; leave --mtp-head "
                "away, or take --proposer auto, mtp or mtp+ngram"
            )
        head = read_head(Path(self._options.mtp_head).absolute())
        check_belongs(head, self._source)
        return head

    def _gather(self) -> Gathering | None:
        if self._options.join is None:
            return None
        first = 1 if self._options.hold_first_stage else 0
        return Gathering(
            self._options.join,
            self._source.digest,
            self.security,
            first,
            self.ranges[first:],
            locked_names(self._options),
            lambda reason: self.on_return(reason),
        )

    async def _start(self, index: int) -> None:
        head = self.mtp_head
        options = StageOptions(
            self._options.model,
            threads=self.threads,
            library=self._options.library,
            mtp_head=str(head) if isinstance(head, Path) else head,
        )
        self._children[index] = await self._launcher.start(index, options)

    def _security(self) -> Security:
        """Local stages are children of this process on its own machine: their links are open."""
        if not self._elsewhere:
            return OPEN
        options = self._options.security
        security = load_security(options)
        hosts = (host for host, _ in self._remote)
        check_exposure(hosts, security, insecure=options.insecure, what="call")
        if self._options.join is not None:
            host, _ = parse_address(self._options.join)
            check_exposure((host,), security, insecure=options.insecure, what="listen on")
        return security

    def _ranges(self) -> list[tuple[int, int]]:
        options, layers = self._options, self._source.description.layers
        count = len(self._remote) + (1 if options.hold_first_stage else 0) if self._remote else options.stages
        if options.splits is None:
            return even_splits(layers, count, self._source.description.cut_multiple)
        ranges = parse_splits(options.splits, layers)
        if (self._remote or options.stages > 1) and len(ranges) != count:
            raise UsageError(
                f"--splits {options.splits} names {len(ranges)} layer ranges, but the ring has {count} stages"
            )
        return ranges
