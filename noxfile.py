"""Tests in environments of their own: on every Python, beside old, new and coming packages, and of what is uploaded.

`make matrix` and `make package` run them; `nox --list` shows them all.
"""

import json
import os
import shutil
from pathlib import Path

import nox
from packaging.version import Version

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "uv"
nox.options.download_python = "never"
nox.options.sessions = ["package"]

PYPROJECT = nox.project.load_toml("pyproject.toml")
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
#: Those of the classifiers.
PYTHONS = nox.project.python_versions(PYPROJECT)

#: How versions are chosen: the lower bounds of pyproject.toml, the newest, and the newest with pre-releases.
CHOICES = {"oldest": ["--resolution=lowest-direct"], "newest": [], "coming": ["--prerelease=allow"]}
PACKAGES = [nox.param(name, id=name) for name in ("oldest", "newest")]

#: Beside the newest packages, a deprecation is an error; what old ones say of younger ones cannot be mended.
LENIENT = [*(f"-Wignore::{category}Warning" for category in ("Deprecation", "PendingDeprecation", "Future")),
           "-Wignore:Unknown solver options"]  # of scikit-learn before 1.6 beside scipy 1.18

#: From the archive of sources, `make package` runs these alone, and `make matrix` the fast part.
SAMPLE = ("tests/graph/test_build.py", "tests/learning/test_averaging.py", "tests/test_package.py")


@nox.session(python=PYTHONS)
@nox.parametrize("packages", PACKAGES)
def fast(session: nox.Session, packages: str) -> None:
    """The fast part of the tests."""
    test(session, install(session, packages), packages, "@tests/fast.txt")


@nox.session(python=PYTHONS[-1])
def coming(session: nox.Session) -> None:
    """The fast part beside pre-releases, where there are some."""
    sources = install(session, "coming")
    early = [f"{name} {version}" for name, version in versions(session).items() if Version(version).is_prerelease]
    if not early:
        session.skip("no package has a pre-release later than its release")
    session.log(f"pre-releases: {', '.join(early)}")
    test(session, sources, "coming", "@tests/fast.txt")


@nox.session(python=PYTHONS)
@nox.parametrize("packages", PACKAGES)
def torch(session: nox.Session, packages: str) -> None:
    """Tests that need torch, where a build for the CPU is to be had: others take gigabytes."""
    pinned = next(requirement for requirement in EXTRAS["test"] if requirement.startswith("torch=="))
    candidates = EXTRAS["torch"] if packages == "oldest" else [*EXTRAS["torch"], pinned]
    chosen = next((r for r in candidates if is_for_cpu(session, packages, r)), None)
    if chosen is None:
        session.skip("the index has no build of torch for the CPU alone that fits: where download.pytorch.org can be "
                     "reached, set UV_TORCH_BACKEND=cpu")
    test(session, install(session, packages, chosen), packages, "@tests/fast_torch.txt")


@nox.session
def package(session: nox.Session) -> None:
    """The wheel and the archive of sources: built, checked, and run beside nothing but what they require."""
    dist = Path("dist").resolve()
    shutil.rmtree(dist, ignore_errors=True)
    session.run_install("uv", "build", "--quiet", "--out-dir", str(dist), external=True)  # the wheel from the archive
    files = sorted(map(str, dist.glob("ortpartial-*")))
    session.run_install("uv", "tool", "run", "--quiet", "twine>=6.1", "check", "--strict", *files, external=True)
    archive, wheel = files[::-1] if files[0].endswith(".whl") else files
    session.install(f"{wheel}[cpu]")
    session.run("uv", "pip", "check", external=True)
    session.run("python", "-I", str(Path("tools/smoke_test.py").resolve()))
    session.install(*EXTRAS["fast"])
    test(session, unpack(session, archive), "newest", *SAMPLE)


def install(session: nox.Session, packages: str, *more: str) -> Path:
    """Install what the fast part needs and, from an archive of sources, the package; the folder of the sources."""
    options = index_options(packages)
    session.install(*options, "--requirements=pyproject.toml", "--extra=cpu", "--extra=sklearn", "--extra=cli",
                    "--extra=fast", *more)
    target = Path(session.virtualenv.location, "archive").resolve()
    shutil.rmtree(target, ignore_errors=True)
    session.run_install("uv", "build", "--quiet", "--sdist", "--out-dir", str(target), external=True)
    sources = unpack(session, next(target.glob("*.tar.gz")))
    session.install("--no-deps", str(sources))
    session.log(", ".join(f"{name} {version}" for name, version in versions(session).items()))
    return sources


def index_options(packages: str) -> list[str]:
    """Options of `uv pip install`. It reads no variables of pip's, where this machine may name a folder of wheels."""
    folders = [f"--find-links={folder}" for folder in os.environ.get("PIP_FIND_LINKS", "").split()]
    return ["--only-binary=:all:", *folders, *CHOICES[packages]]


def is_for_cpu(session: nox.Session, packages: str, requirement: str) -> bool:
    """Whether there is a build of torch that would be installed, without libraries of CUDA."""
    plan = session.run_install("uv", "pip", "install", "--dry-run", *index_options(packages), requirement,
                               external=True, silent=True, success_codes=[0, 1])
    return "torch==" in plan and "nvidia-" not in plan


def versions(session: nox.Session) -> dict[str, str]:
    """The installed packages."""
    listed = session.run_install("uv", "pip", "list", "--quiet", "--format=json", external=True, silent=True)
    return {p["name"]: p["version"] for p in json.loads(listed)}


def unpack(session: nox.Session, archive: str | Path) -> Path:
    """The folder of an archive of sources, unpacked into the environment."""
    target = Path(session.virtualenv.location, "sources").resolve()
    shutil.rmtree(target, ignore_errors=True)
    shutil.unpack_archive(archive, target)
    return next(target.iterdir())


def test(session: nox.Session, sources: Path, packages: str, *tests: str) -> None:
    """Run tests in the folder that holds them, `-n 2` as the Makefile does."""
    session.chdir(sources)
    session.run("python", "-m", "pytest", "-q", "-n2", "--dist=worksteal", "-p", "no:cacheprovider",
                *(LENIENT if packages == "oldest" else []), *tests, env={"OMP_NUM_THREADS": "1"})
