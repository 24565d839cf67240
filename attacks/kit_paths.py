"""A training kit whose manifest names files elsewhere, and adapters and exports with such names.

An attacker hopes that reading a kit reads, or saving it overwrites, a file of the victim.
"""

import json
from pathlib import Path

from victims import X, optimizer

from ortpartial import TrainingKit, export_c, read_c_state


def naive():
    Path("kit").mkdir()
    Path("diary").write_text("secret")
    manifest = {"state": {"file": "../diary"}}
    Path("kit", manifest["state"]["file"]).write_text("overwritten")
    return Path("diary").read_text() == "overwritten"


def attacks():
    optimizer().export_step("kit", batch_size=4)
    Path("diary").write_text("secret")
    text = Path("kit/kit.json").read_text()
    manifest = json.loads(text)

    def attack(change):
        stored = json.loads(text)
        change(stored)
        Path("kit/kit.json").write_text(json.dumps(stored))
        kit = TrainingKit("kit")
        kit.step({t.name: X[:4] for t in kit.manifest.inputs})
        kit.model()
        kit.save()
        return "unharmed: a kit" if Path("diary").read_text() == "secret" else "OVERWRITTEN"

    for path in ("../diary", str(Path("diary").resolve()), "..", "", "x\\..\\..\\diary", "kit/../../diary", 5, None):
        yield f"state: {path}"[:34], lambda path=path: attack(lambda m: m["state"].update(file=path))
        yield f"model: {path}"[:34], lambda path=path: attack(lambda m: m["model"].update(file=path))
        yield f"step: {path}"[:34], lambda path=path: attack(lambda m: m["steps"][0].update(file=path))
    name = manifest["state"]["tensors"][0]["name"]
    for shape in ([2**40], [-1], [2**62, 2**62], "4", [1] * 100):
        yield f"shape {shape}"[:34], lambda shape=shape: attack(lambda m: m["state"]["tensors"][0].update(shape=shape))
    for offset in (-1, 2**62, None):
        yield f"offset {offset}", lambda offset=offset: attack(
            lambda m: m["model"]["weights"].append({"name": name, "offset": offset}))
    yield "dtype O", lambda: attack(lambda m: m["inputs"][0].update(dtype="object"))

    def linked():
        Path("kit/kit.json").write_text(text)
        Path("state").write_bytes(Path("kit/state.safetensors").read_bytes())
        before = Path("state").read_bytes()
        Path("kit/state.safetensors").unlink()
        Path("kit/state.safetensors").symlink_to("../state")
        attack(lambda m: None)
        return "unharmed: the link was replaced" if Path("state").read_bytes() == before else "OVERWRITTEN"

    yield "a state that is a link", linked
    export_c(optimizer(), "c", batch_size=4)
    yield "an export with such a name", lambda: export_c(optimizer(), "c", batch_size=4, name="../diary")
    yield "a state in C of another size", lambda: read_c_state("c", bytes(100))
