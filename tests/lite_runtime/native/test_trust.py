"""No file that another user could have written is run or used, for reading and for writing."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lite_runtime.errors import MsedgeError
from lite_runtime.native import build, trust, tuning
from lite_runtime.native.target import host
from lite_runtime.native.trust import TrustError

ANOTHER = 12345
"""A user that is neither this one nor root."""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
on_native = pytest.mark.skipif(host() is None, reason="no native kernels on this processor")


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """What these tests create is theirs alone, except where they say otherwise."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A file as the cache keeps it."""
    path = tmp_path / "cache" / "kernels" / "some.img"
    trust.write(str(path), b"code")
    return path


def read(path: Path) -> bytes:
    with trust.opened(str(path)) as file:
        return file.read()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_stored_files_are_accessible_only_to_their_owner(kept: Path) -> None:
    assert read(kept) == b"code"
    assert mode(kept) == 0o600
    assert mode(kept.parent) == mode(kept.parent.parent) == 0o700


def test_folders_are_private_whatever_the_umask(tmp_path: Path) -> None:
    os.umask(0)
    path = tmp_path / "a" / "b" / "c" / "some.img"
    trust.write(str(path), b"1")
    trust.write(str(path), b"2")
    assert [mode(p) for p in (path, *path.parents[:3])] == [0o600, 0o700, 0o700, 0o700]
    assert read(path) == b"2"


def test_an_open_file_is_made_private_when_written_again(kept: Path) -> None:
    kept.chmod(0o666)
    trust.write(str(kept), b"new")
    assert mode(kept) == 0o600 and read(kept) == b"new"


@pytest.mark.parametrize("bits", [0o620, 0o602, 0o666, 0o660])
def test_a_file_that_others_can_write_is_refused(kept: Path, bits: int) -> None:
    kept.chmod(bits)
    with pytest.raises(TrustError, match=rf"some.img is not used.*mode {bits:04o}.*delete it and run again"):
        read(kept)


@pytest.mark.parametrize("bits", [0o720, 0o702, 0o777, 0o1777])
def test_a_folder_that_others_can_write_is_refused(kept: Path, bits: int) -> None:
    """Also one with the sticky bit: others could put files there before we do."""
    kept.parent.chmod(bits)
    with pytest.raises(TrustError, match=rf"kernels has mode {bits:04o}.*chmod go-w .*kernels.*MSEDGE_CACHE"):
        read(kept)
    with pytest.raises(TrustError, match="chmod go-w"):
        trust.write(str(kept), b"new")
    with pytest.raises(TrustError, match="chmod go-w"):
        trust.write(str(kept.with_name("another.img")), b"new")
    kept.parent.chmod(0o755)
    assert read(kept) == b"code" and [p.name for p in kept.parent.iterdir()] == ["some.img"]


@pytest.mark.parametrize("bits", [0o702, 0o777, 0o770])
def test_a_folder_above_that_others_can_write_is_refused(kept: Path, bits: int) -> None:
    """They could put another `kernels` in the place of ours."""
    if bits == 0o770:  # of a group that others are in
        os.chown(kept.parents[1], -1, _foreign_group())
    kept.parents[1].chmod(bits)
    with pytest.raises(TrustError, match=rf"cache has mode {bits:04o}"):
        read(kept)
    with pytest.raises(TrustError, match="cache has mode"):
        trust.make_folder(str(kept.parents[1] / "programs" / "deeper"))
    assert not (kept.parents[1] / "programs").exists()


def _foreign_group() -> int:
    """A group other than the user's own to which this process may give its files; skips if there is none."""
    if os.geteuid() == 0:
        return ANOTHER
    others = sorted(set(os.getgroups()) - {os.getegid()})
    if not others:
        pytest.skip("this user is in one group only")
    return others[0]


def test_a_sticky_folder_above_may_be_writable_for_all_users(kept: Path) -> None:
    kept.parents[1].chmod(0o1777)
    assert read(kept) == b"code"
    trust.write(str(kept), b"new")


def test_a_private_group_has_no_other_user(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """umask 002 and a group for each user: usual, and harmless if no other user is in the group."""
    import grp
    import pwd

    me = pwd.getpwuid(os.geteuid())
    kept.parents[1].chmod(0o775)
    gid = kept.parents[1].stat().st_gid

    def group(name: str, members: list[str]) -> Callable[[int], grp.struct_group]:
        return lambda asked: grp.struct_group((name, "x", asked, members)) if asked == gid else grp.getgrgid(asked)

    for name, members, fine in (
        (me.pw_name, [], True),
        (me.pw_name, [me.pw_name], True),
        (me.pw_name, ["somebody"], False),
        ("staff", [], False),
    ):
        monkeypatch.setattr(grp, "getgrgid", group(name, members))
        if fine:
            assert read(kept) == b"code"
        else:
            with pytest.raises(TrustError, match="cache has mode 0775"):
                read(kept)


@as_root
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_what_another_user_owns_is_refused(kept: Path, depth: int) -> None:
    theirs = [kept, *kept.parents][depth]
    os.chown(theirs, ANOTHER, -1)
    with pytest.raises(TrustError, match=rf"user {ANOTHER}"):
        read(kept)
    if depth:
        with pytest.raises(TrustError, match=rf"{theirs.name} belongs to user {ANOTHER}; set MSEDGE_CACHE"):
            trust.write(str(kept), b"new")


def test_a_link_to_a_folder_is_followed_and_what_it_leads_to_checked(kept: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(kept.parents[1])
    assert read(link / "kernels" / "some.img") == b"code"
    trust.write(str(link / "kernels" / "more.img"), b"more")
    assert read(kept.with_name("more.img")) == b"more"
    kept.parents[1].chmod(0o777)
    with pytest.raises(TrustError, match="cache has mode 0777"):
        read(link / "kernels" / "some.img")


def test_a_link_in_the_place_of_a_file_is_refused(kept: Path) -> None:
    (kept.parent / "link.img").symlink_to(kept)
    with pytest.raises(TrustError, match="symbolic link"):
        read(kept.parent / "link.img")


def test_no_file_is_an_ordinary_error(tmp_path: Path) -> None:
    for path in (tmp_path / "none.img", tmp_path / "no" / "folder.img", Path("/proc/no/such/file")):
        with pytest.raises(FileNotFoundError):
            read(path)
    with pytest.raises(TrustError, match="regular file"):
        (tmp_path / "folder.img").mkdir()
        trust._check_file("folder.img", os.stat(tmp_path / "folder.img"))


def test_a_problem_is_told_beforehand(kept: Path, tmp_path: Path) -> None:
    assert trust.problem(str(kept.parent)) == trust.problem(str(tmp_path / "none" / "yet")) == ""
    kept.parents[1].chmod(0o777)
    assert "cache has mode 0777" in trust.problem(str(kept.parent))
    assert "cache has mode 0777" in trust.problem(str(kept.parents[1] / "none" / "yet"))


# -- callers -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The walker's stored image, copied into a separate cache."""
    target = host()
    assert target is not None
    build.prepare(["walker"])
    whole = Path(build._path("walker", target)).read_bytes()
    path = tmp_path / "cache" / "kernels" / "walker.img"
    trust.write(str(path), whole)
    monkeypatch.setattr(build, "_path", lambda family, target: str(path))
    monkeypatch.setattr(build, "_images", {})
    return path


@on_native
def test_compiled_kernels_that_others_can_write_are_not_run(compiled: Path) -> None:
    assert "lead" in build.image("walker").addresses
    for changed, match in ((compiled, "delete it"), (compiled.parent, "chmod go-w"), (compiled.parents[1], "chmod")):
        build._images.clear()
        before = mode(changed)
        changed.chmod(0o777)
        with pytest.raises(TrustError, match=match):
            build.image("walker")
        assert not build._images and compiled.exists()
        changed.chmod(before)
    assert "lead" in build.image("walker").addresses


@on_native
def test_nothing_is_compiled_into_a_folder_that_others_can_write(compiled: Path) -> None:
    compiled.unlink()
    compiled.parent.chmod(0o777)
    with pytest.raises(TrustError, match="chmod go-w"):
        build.prepare(["walker"])
    assert not list(compiled.parent.iterdir())


@on_native
def test_the_runtimes_own_kernels_are_unpacked_into_memory_instead(native: Path) -> None:
    """They came with the runtime, so a start needs no cache; that it did without is said."""
    assert "lead" in build.image("walker").addresses
    (unpacked,) = (native / "cache" / "kernels").iterdir()
    unpacked.write_bytes(b"not what the runtime brought")
    unpacked.chmod(0o666)
    unpacked.parent.chmod(0o777)
    build._native.cache_clear()
    build._images.clear()
    with pytest.warns(RuntimeWarning, match=r"chmod go-w .*unpacked into memory at each start"):
        assert "lead" in build.image("walker").addresses
    assert unpacked.read_bytes() == b"not what the runtime brought"
    unpacked.parent.chmod(0o700)  # the folder is ours again: the file is replaced
    build._native.cache_clear()
    build._images.clear()
    assert "lead" in build.image("walker").addresses and mode(unpacked) == 0o600


def test_choices_that_others_could_have_written_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSEDGE_CACHE", str(tmp_path / "cache"))
    tuning.keep({"key": "option"})
    path = Path(tuning.path())
    assert tuning.kept() == {"key": "option"} and mode(path) == 0o600
    path.chmod(0o622)
    with pytest.warns(RuntimeWarning, match="the rules choose"):
        assert tuning.kept() == {}
    path.chmod(0o600)
    path.parent.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="chmod go-w"):
        assert tuning.kept() == {}
    with pytest.raises(MsedgeError, match="chmod go-w"):
        tuning.keep({"key": "other"})
    path.parent.chmod(0o700)
    assert tuning.kept() == {"key": "option"}


def test_a_warning_is_given_once_for_each_text() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(3):
            for text in ("one", "another"):
                trust.warn(TrustError(text), "so what")
    assert [str(w.message) for w in found] == ["one (so what)", "another (so what)"]
