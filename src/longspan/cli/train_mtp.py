"""`longspan train-mtp`: train a head that drafts for a model, or measure one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.output import format_table, print_facts, print_json
from longspan.cli.progress import ProgressBars, progress_line
from longspan.errors import UsageError

if TYPE_CHECKING:
    from longspan.train.held_out import Agreement

_GIB = 1 << 30


def train_mtp(
    model: str = "demo",
    /,
    *,
    out: Path | None = None,
    evaluate: str | None = None,
    resume: str | None = None,
    minutes: Annotated[float, Parameter(validator=Number(gt=0))] = 5.0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    texts: Path | None = None,
    disk: Annotated[float, Parameter(validator=Number(gt=0))] = 8.0,
    seed: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    library: str | None = None,
    json: bool = False,
) -> None:
    """Train a small head that drafts several tokens ahead, for any model that can be split.

    The model writes conversations with itself in its own chat template, and the
    head learns what the model will say next. Needs PyTorch: pip install
    'longspan[train]'. The result is used with longspan serve MODEL --mtp-head
    HEAD. Interrupt it when you have enough: the best head so far is kept, and
    --resume goes on from there.

    For example:

        longspan train-mtp demo --out head.safetensors --minutes 5
        longspan train-mtp demo --out head.safetensors --resume head.safetensors
        longspan train-mtp demo --evaluate carried

    Parameters
    ----------
    model
        A .gguf file, a layer package, demo or hf://owner/repo/file.gguf; it
        must have a chat template.
    out
        The file of the head.
    evaluate
        Train nothing; measure this head on text that it was not trained on. A
        file, or "carried" for the head that Longspan carries for the model.
    resume
        Go on from this head instead of from the model's last block. A file, or
        "carried".
    minutes
        For everything together: writing, training and measuring.
    device
        Where to train (default: CUDA where PyTorch finds it).
    threads
        Threads on the CPU (default: all cores).
    texts
        Keep the written texts in this directory, and use what is there
        (default: beside the head, and removed at the end).
    disk
        Most GiB that texts may take; the oldest go first.
    seed
        Of everything random.
    library
        Another libllama of the same build, for example with CUDA.
    json
        Print the result as JSON.
    """
    from longspan.train.torch_extra import require_torch

    require_torch()
    if (out is None) == (evaluate is None):
        raise UsageError("name a file to train (--out HEAD), or a head to measure (--evaluate HEAD).")
    if evaluate is not None and resume is not None:
        raise UsageError("--evaluate trains nothing, so --resume has no place beside it.")
    from longspan.openmp import set_waiting

    set_waiting()  # before the library is loaded
    from longspan.model.reference import resolve
    from longspan.ring.llama_loader import default_threads
    from longspan.train.options import TrainingOptions
    from longspan.train.run import measure_head, train_head

    options = TrainingOptions(
        out=out or Path(),
        minutes=minutes,
        resume=resume,
        texts=texts,
        disk_bytes=int(disk * _GIB),
        threads=threads or default_threads(),
        device=device,
        seed=seed,
        library=library,
    )
    source = resolve(model, progress=ProgressBars())
    if evaluate is not None:
        with progress_line() as show:
            found = measure_head(source, evaluate, options, show)
        if json:
            print_json(found)
        else:
            _print_agreement({"agreement": found.by_depth, "whole chain": found.chains})
            _print_summary(found)
        return
    with progress_line() as show:
        result = train_head(source, options, show)
    if json:
        print_json(result)
        return
    _print_agreement(
        {"at the start": result.start.by_depth, "now": result.end.by_depth, "whole chain": result.end.chains}
    )
    _print_summary(result.end)
    print_facts(
        [
            ("written", f"{result.written_tokens} tokens in {result.writing_seconds:.0f} s"),
            ("trained", f"{result.steps} steps, {result.tokens} tokens in {result.training_seconds:.0f} s"),
            ("loss", f"{result.loss:.3f}"),
            ("head", result.head + (" (interrupted)" if result.interrupted else "")),
        ]
    )


def _print_agreement(columns: dict[str, tuple[float, ...]]) -> None:
    depths = range(len(next(iter(columns.values()))))
    rows = [(depth + 1, *(f"{column[depth]:.3f}" for column in columns.values())) for depth in depths]
    print(format_table(("depth", *columns), rows))


def _print_summary(found: Agreement) -> None:
    print(
        f"\n{found.positions} tokens of answers, drafted out of {found.vocabulary}; the head's own vocabulary "
        f"covers {found.covered:.1%}.\n{found.tokens_per_traversal:.2f} tokens a traversal with chains of "
        f"{len(found.chains)}.\n"
    )
