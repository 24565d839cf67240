"""Install onnxruntime for Java, and Jackson, into a folder, for the tests of a runner.

Their own home is Maven Central. Where only PyPI is reached, both come from pyserini, a toolkit of the University of
Waterloo for searching text, whose jar holds onnxruntime 1.17.0 as Microsoft has built it.

    python -m tools.install_java_runtime examples/anywhere/java/lib
"""

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from zipfile import ZipFile

REQUIREMENT = "pyserini==2.4.0 --hash=sha256:45979fa5fc8d54a35dce15cfd59d4d3dc4b4b29d8f0442e1e1f3a9ab0a303541"
CLASSES, LIBRARIES = ("ai/onnxruntime/", "com/fasterxml/jackson/"), "ai/onnxruntime/native/linux-"


def download(folder: Path) -> Path:
    """Download the package; its requirements, and the Python that it asks for, do not matter."""
    requirements = folder / "requirements.txt"
    requirements.write_text(REQUIREMENT)
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                    "--ignore-requires-python", "--require-hashes", "-r", requirements, "-d", folder], check=True)
    return next(folder.glob("pyserini-*.tar.gz"))


def install(target: Path) -> None:
    """Unpack the classes and the native libraries for Linux."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(download(Path(folder))) as package:
        jar = package.extractfile(next(m for m in package if m.name.endswith("-fatjar.jar")))
        archive = ZipFile(jar)
        archive.extractall(target, [n for n in archive.namelist() if n.startswith(LIBRARIES) or (
            n.startswith(CLASSES) and n.endswith(".class"))])


if __name__ == "__main__":
    install(Path(sys.argv[1]))
