"""A process of ours does not look for garbage among what it has loaded. In a process of its own: it is for ever."""

import json
import subprocess
import sys

PROGRAM = """
import gc, json, weakref
from toolfleet.adapters.garbage import THRESHOLDS, spare_what_is_loaded

class Node:
    pass

def cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)

loaded = len(gc.get_objects())
spare_what_is_loaded()
looked_at = len(gc.get_objects())
thrown_away = cycle()
gc.collect()
print(json.dumps([loaded, looked_at, gc.get_threshold() == THRESHOLDS, thrown_away() is None]))
"""


def test_what_is_loaded_is_spared_and_what_comes_later_is_collected() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True, timeout=60)
    loaded, looked_at, thresholds, collected = json.loads(done.stdout)
    assert loaded > 5_000 and looked_at < loaded / 20
    assert thresholds and collected
