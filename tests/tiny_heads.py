"""Tiny MTP heads with random weights, for the models of `tiny_models`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from longspan.model.mtp_head import MtpHead, write_head
from longspan.model.source import ModelSource


def tiny_head(source: ModelSource, *, seed: int = 0, vocabulary: int | None = None, prefix: int = 5) -> MtpHead:
    """A head for a model: 4 heads of which 2 hold keys and values, every weight random.

    vocabulary: how many tokens, from the first on, it may draft; None for all. prefix: rows before every sequence.
    """
    generator = np.random.default_rng(seed)
    width = source.description.width

    def matrix(rows: int, columns: int, gain: float = 1.0) -> npt.NDArray[np.float32]:
        return np.asarray(gain * columns**-0.5 * generator.standard_normal((rows, columns)), np.float32)

    def norm() -> npt.NDArray[np.float32]:
        return np.asarray(generator.uniform(0.5, 1.5, width), np.float32)

    return MtpHead(
        path=Path(),
        digest="",
        base=source.description.model_id,
        base_digest=source.digest,
        head_count=4,
        head_count_kv=2,
        rms_epsilon=1e-5,
        rope_base=10000.0,
        eh_proj=matrix(width, 2 * width),
        embedding_norm=norm(),
        hidden_norm=norm(),
        block={
            "attn_norm.weight": norm(),
            "attn_q.weight": matrix(width, width, 2.0),
            "attn_k.weight": matrix(width // 2, width, 2.0),
            "attn_v.weight": matrix(width // 2, width),
            "attn_output.weight": matrix(width, width),
            "ffn_norm.weight": norm(),
            "ffn_gate.weight": matrix(2 * width, width),
            "ffn_up.weight": matrix(2 * width, width),
            "ffn_down.weight": matrix(width, 2 * width),
        },
        output_norm=norm(),
        draft_vocabulary=None if vocabulary is None else np.arange(vocabulary, dtype=np.int32),
        prefix_tokens=np.arange(prefix + 1 if prefix else 0, dtype=np.int32) + 40,
        prefix_hidden=generator.standard_normal((prefix, width)).astype(np.float32),
    )


def write_tiny_head(path: Path, source: ModelSource, **fields: int | None) -> Path:
    """`tiny_head` as a file; returns `path`."""
    write_head(tiny_head(source, **fields), path)  # type: ignore[arg-type]
    return path
