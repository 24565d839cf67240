"""Workflows: actions are pinned, permissions are least, commands are those of the Makefile."""

import re

import pytest
from paths import ROOT

yaml = pytest.importorskip("yaml", reason="reads files of YAML")
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.y*ml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
#: Rights that a job may have beside reading, by workflow and job.
RIGHTS = {
    ("codeql", "codeql"): {"security-events"},
    ("release", "attest"): {"attestations", "id-token"},
    ("release", "publish"): {"id-token"},
    ("scorecard", "scorecard"): {"security-events", "id-token"},
}


@pytest.fixture(params=WORKFLOWS, ids=lambda p: p.stem)
def text(request):
    return request.param.read_text(encoding="utf-8")


@pytest.fixture
def workflow(text):
    return yaml.safe_load(text)


def test_there_are_workflows():
    assert {p.stem for p in WORKFLOWS} >= {"codeql", "release", "scorecard", "tests"}


def test_actions_are_pinned_by_commit_and_version(text):
    lines = [line.strip() for line in text.splitlines() if re.search(r"\buses:", line)]
    pinned = re.compile(r"(- )?uses: [\w.-]+(/[\w.-]+)+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")
    assert [line for line in lines if not pinned.fullmatch(line)] == []
    assert len(lines) == len(re.findall("uses:", text)) > 0


def test_an_action_has_one_version():
    pins = re.findall(r"uses: ([\w.-]+/[\w.-]+)\S*@(\S+)", "".join(p.read_text(encoding="utf-8") for p in WORKFLOWS))
    assert len(dict(pins)) == len(set(pins))


def test_permissions_are_those_that_a_job_needs(workflow):
    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        written = {right for right, value in job["permissions"].items() if value != "read"}
        assert written == RIGHTS.get((workflow["name"], name), set()), name
        assert set(job["permissions"].values()) <= {"read", "write"}


def test_jobs_end_and_leave_no_token_behind(workflow):
    for name, job in workflow["jobs"].items():
        assert 0 < job["timeout-minutes"] <= 90, name
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, name


def test_commands_are_those_of_the_makefile(workflow):
    targets = set()
    for job in workflow["jobs"].values():
        called = re.findall(r"make ([\w-]+)", " ".join(step.get("run", "") for step in job["steps"]))
        targets.update(called, job.get("strategy", {}).get("matrix", {}).get("target", []))
    assert {t for t in targets if not re.search(rf"^{t}:", MAKEFILE, re.M)} == set()


def test_nothing_of_an_event_is_part_of_a_command(workflow):
    for job in workflow["jobs"].values():
        assert [step["run"] for step in job["steps"] if "${{" in step.get("run", "")] == []


def test_dependabot_looks_where_dependencies_stand():
    updates = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text(encoding="utf-8"))["updates"]
    folders = {u["package-ecosystem"]: [f.strip("/") for f in u.get("directories", ["/"])] for u in updates}
    assert set(folders) == {"github-actions", "npm", "pip"}
    assert all((ROOT / folder / "package.json").exists() for folder in folders["npm"])
    assert (ROOT / "tools/requirements.txt").exists()
    assert sorted(folders["pip"]) == ["", "tools"]
