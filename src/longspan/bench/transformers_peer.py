"""Hugging Face transformers behind an HTTP endpoint, on the CPU: a peer to compare with.

Run by path, in an interpreter that has torch, transformers, accelerate and gguf, and need not have Longspan. The
model file is dequantised when it is read. Requests that wait together are one batch, padded on the left.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import queue
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

GATHER_SECONDS = 0.02
"""Requests that are sent at once arrive within this time."""
BODY_BYTES = 1 << 24


class Asked(NamedTuple):
    """One request. done: gets the generated token ids, or what went wrong."""

    prompt: list[int]
    tokens: int
    done: queue.Queue[list[int] | Exception]


class Batches:
    """The model, and what waits for it."""

    def __init__(self, path: Path, threads: int, most: int) -> None:
        import torch
        import transformers

        self._torch = torch
        torch.set_num_threads(threads)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=torch.float32
        ).eval()
        self._most = most
        self._waiting: queue.Queue[Asked] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def answer(self, prompt: list[int], tokens: int) -> list[int]:
        """Greedily generated token ids. Raises what transformers raised."""
        asked = Asked(prompt, tokens, queue.Queue())
        self._waiting.put(asked)
        found = asked.done.get()
        if isinstance(found, Exception):
            raise found
        return found

    def _run(self) -> None:
        while True:
            batch = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while len(batch) < self._most:
                    batch.append(self._waiting.get(timeout=GATHER_SECONDS))
            try:
                answers: list[list[int] | Exception] = list(self._generate(batch))
            except Exception as error:
                answers = [error] * len(batch)
            for asked, answer in zip(batch, answers, strict=True):
                asked.done.put(answer)

    def _generate(self, batch: list[Asked]) -> list[list[int]]:
        torch = self._torch
        longest = max(len(asked.prompt) for asked in batch)
        most = max(asked.tokens for asked in batch)
        rows = [[0] * (longest - len(asked.prompt)) + asked.prompt for asked in batch]
        seen = [[0] * (longest - len(asked.prompt)) + [1] * len(asked.prompt) for asked in batch]
        with torch.inference_mode():
            made: Any = self._model.generate(
                input_ids=torch.tensor(rows),
                attention_mask=torch.tensor(seen),
                max_new_tokens=most,
                min_new_tokens=most,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        return [row[longest : longest + asked.tokens] for row, asked in zip(made.tolist(), batch, strict=True)]


def handler_of(batches: Batches) -> type[http.server.BaseHTTPRequestHandler]:
    """What answers /v1/models and /v1/completions (prompts as token ids, whole answers)."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(200, {"object": "list", "data": [{"id": "transformers", "object": "model"}]})

        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            if length > BODY_BYTES:
                self._send(413, {"error": {"message": f"more than {BODY_BYTES} bytes"}})
                return
            asked = json.loads(self.rfile.read(length))
            try:
                tokens = batches.answer(asked["prompt"], asked["max_tokens"])
            except Exception as error:
                self._send(500, {"error": {"message": repr(error)}})
                return
            usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": len(tokens)}
            self._send(200, {"choices": [{"index": 0, "text": "", "token_ids": tokens}], "usage": usage})

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing is logged."""

        def _send(self, status: int, value: object) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def main() -> None:
    """Serve what the one JSON argument says (path, threads, slots) until standard input is closed."""
    options = json.loads(sys.argv[1])
    batches = Batches(Path(options["path"]), options["threads"], options["slots"])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler_of(batches))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"listening on http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
