"""The cache of libraries: its place, when it is trusted, and its content."""

import os
import sys

import pytest
from once import ON_TRAINING

from ortpartial.native import library_cache
from ortpartial.native.compiler import FLAGS, compile_library, find_compiler
from ortpartial.native.library_cache import find_cache, load_entry, store_entry

pytestmark = [
    ON_TRAINING,
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions and libraries"),
]

KEY = "0123456789abcdef" * 2


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("ORTPARTIAL_CACHE", str(tmp_path / "cache"))
    return find_cache()


@pytest.mark.parametrize(
    ("platform", "variables", "place"),
    [
        ("linux", {}, ".cache/ortpartial"),
        ("linux", {"XDG_CACHE_HOME": "{home}/xdg"}, "xdg/ortpartial"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, ".cache/ortpartial"),
        ("linux", {"XDG_CACHE_HOME": "{home}/xdg", "ORTPARTIAL_CACHE": "{home}/mine"}, "mine"),
        ("linux", {"ORTPARTIAL_CACHE": "~/mine"}, "mine"),
        ("darwin", {"XDG_CACHE_HOME": "{home}/xdg"}, "Library/Caches/ortpartial"),
        ("win32", {"LOCALAPPDATA": "{home}/Local"}, "Local/ortpartial/Cache"),
        ("win32", {}, "AppData/Local/ortpartial/Cache"),
    ],
)
def test_place_follows_the_convention_of_the_system(platform, variables, place, tmp_path, monkeypatch):
    for name in ("XDG_CACHE_HOME", "ORTPARTIAL_CACHE", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path), **variables}.items():
        monkeypatch.setenv(name, value.format(home=tmp_path))
    monkeypatch.setattr(sys, "platform", platform)
    assert find_cache() == tmp_path / place / "native"
    assert (tmp_path / place / "native").is_dir()


def test_folder_is_closed_to_others(folder):
    former = os.umask(0)
    try:
        assert find_cache().stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(former)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o707, 0o750])
def test_folder_that_is_open_to_others_is_not_trusted(mode, folder):
    folder.chmod(mode)
    assert find_cache() is None


@pytest.mark.parametrize(("mode", "is_trusted"), [(0o755, True), (0o777, False), (0o757, False), (0o1777, True)])
def test_folders_above_are_not_to_be_renamed_by_others(mode, is_trusted, folder):
    folder.parent.chmod(mode)
    assert (find_cache() is not None) == is_trusted


@pytest.mark.parametrize(("of_user_alone", "is_trusted"), [(True, True), (False, False)])
def test_group_may_write_above_if_it_is_that_of_the_user_alone(of_user_alone, is_trusted, folder, monkeypatch):
    monkeypatch.setattr(library_cache, "_is_group_of_user", lambda group: of_user_alone)
    folder.parent.chmod(0o775)
    assert (find_cache() is not None) == is_trusted


def test_group_of_the_user_alone_has_its_name_and_no_other_member(monkeypatch):
    class User:
        pw_name, pw_gid = "ada", 1000

    class Group:
        gr_name, gr_mem = "ada", ["ada"]

    monkeypatch.setattr(library_cache.pwd, "getpwuid", lambda uid: User)
    monkeypatch.setattr(library_cache.grp, "getgrgid", lambda gid: Group)
    assert library_cache._is_group_of_user(1000)
    assert not library_cache._is_group_of_user(1001)
    monkeypatch.setattr(Group, "gr_mem", ["ada", "eve"])
    assert not library_cache._is_group_of_user(1000)
    monkeypatch.setattr(Group, "gr_mem", [])
    monkeypatch.setattr(Group, "gr_name", "users")
    assert not library_cache._is_group_of_user(1000)


def test_folder_of_another_user_is_not_trusted(folder, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    assert find_cache() is None


def test_link_to_a_folder_that_is_open_to_others_is_not_trusted(folder, tmp_path, monkeypatch):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    monkeypatch.setenv("ORTPARTIAL_CACHE", str(tmp_path / "link"))
    assert find_cache() is None
    assert list((tmp_path / "open").iterdir()) == []


def test_place_that_is_no_folder(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ORTPARTIAL_CACHE", str(tmp_path / "file"))
    assert find_cache() is None


def test_user_without_a_home(monkeypatch):
    for name in ("XDG_CACHE_HOME", "ORTPARTIAL_CACHE"):
        monkeypatch.delenv(name, raising=False)

    def fail():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(library_cache.Path, "home", fail)
    assert find_cache() is None


def test_damaged_entry_is_removed_and_never_loaded(folder):
    entry = store_entry(folder, KEY, b"no library")
    entry.write_bytes(b"no librarz")
    assert load_entry(folder, KEY) is None
    assert list(folder.iterdir()) == []


def test_entry_that_is_no_library_is_removed(folder):
    store_entry(folder, KEY, b"no library")
    assert load_entry(folder, KEY) is None
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
@pytest.mark.parametrize("is_of_user", [True, False])
def test_entry_of_another_user_is_removed_and_never_loaded(is_of_user, folder, monkeypatch):
    compile_library(f"int number(void); int number(void) {{ return {int(is_of_user)}; }}")
    entry = next(folder.iterdir())
    if not is_of_user:
        monkeypatch.setattr(os, "geteuid", lambda: entry.stat().st_uid + 1)
    assert (load_entry(folder, entry.name.partition("-")[0]) is not None) == is_of_user
    assert entry.exists() == is_of_user


def test_pipe_in_the_place_of_an_entry_is_removed(folder):
    os.mkfifo(folder / f"{KEY}-{KEY}.so")
    assert load_entry(folder, KEY) is None
    assert list(folder.iterdir()) == []


def test_entry_under_the_key_of_another_is_told_apart(folder):
    store_entry(folder, KEY, b"some library")
    assert load_entry(folder, KEY[::-1]) is None
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(("entries", "size"), [(2, 2**20), (9, 25)])
def test_entries_beyond_the_limits_are_dropped_by_their_last_use(entries, size, folder, monkeypatch):
    monkeypatch.setattr(library_cache, "_ENTRIES", entries)
    monkeypatch.setattr(library_cache, "_BYTES", size)
    for age, digit in enumerate("0123"):
        os.utime(store_entry(folder, digit * 32, b"ten bytes!"), (1000 - age, 1000 - age))
    store_entry(folder, "4" * 32, b"ten bytes!")
    assert sorted(file.name[0] for file in folder.iterdir()) == ["0", "4"]


def test_last_use_is_noted(folder):
    if find_compiler() is None:
        pytest.skip("needs a C compiler")
    source = "int used(void) { return 1; }"
    compile_library(source, flags=[*FLAGS, "-DUSED"])
    (entry,) = [file for file in folder.iterdir() if b"used" in file.read_bytes()]
    os.utime(entry, (1000, 1000))
    assert load_entry(folder, entry.name.partition("-")[0]).used() == 1
    assert entry.stat().st_mtime > 1000
