"""Watching folders, with the operating system's real events."""

from __future__ import annotations

import ctypes
import errno
import inspect
import itertools
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from watchdog import events
from watchdog.observers import inotify_c
from watchdog.utils import UnsupportedLibcError

from exporter.transcripts.inotify import Inotify
from exporter.transcripts.recursive import Recursive
from exporter.transcripts.watcher import Changes, FolderKind, Watcher

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify")

NOTHING = Changes()
LINUX, MACOS = "linux", "darwin"
"""The inotify backend, and the recursive one, which works on Linux as well."""

deadly = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
"""For tests in which a thread dies of an exception."""


class Home:
    """A Gemini CLI home with one project, its watcher, and a count of wakes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tmp = root / "tmp"
        self.project = self.tmp / "shop"
        self.chats = self.project / "chats"
        self.chats.mkdir(parents=True)
        self.wakes = 0
        self.woken = threading.Event()
        self.numbers = itertools.count()
        self.watcher = Watcher([str(root)], self.wake)

    def wake(self) -> None:
        self.wakes += 1
        self.woken.set()

    def use(self, platform: str) -> None:
        self.watcher = Watcher([str(self.root)], self.wake, platform)

    def folders(self) -> dict[str, FolderKind]:
        """The folders that a collector would pass: everything but tool-outputs."""
        found = {str(folder): FolderKind.PARENT for folder in (self.root, self.tmp)}
        for project in self.tmp.iterdir():
            found[str(project)] = FolderKind.PARENT
            chats = project / "chats"
            for folder in (chats, *chats.glob("*/")):
                if folder.is_dir():
                    found[str(folder)] = FolderKind.FILES
        return found

    def sync(self) -> None:
        self.watcher.sync(self.folders())

    def begin(self) -> None:
        self.watcher.start()
        self.sync()

    def until(self, wanted: Callable[[Changes], bool]) -> Changes:
        """Take changes, each time we are woken, until they are as wanted; give up after 5 s."""
        files: set[str] = set()
        folders: set[str] = set()
        everything = False
        deadline = time.monotonic() + 5
        while True:
            woken = self.woken.wait(max(0.0, deadline - time.monotonic()))
            self.woken.clear()
            more = self.watcher.take()
            files |= more.files
            folders |= more.folders
            everything |= more.everything
            changes = Changes(frozenset(files), frozenset(folders), everything)
            if wanted(changes):
                return changes
            assert woken, f"only {changes}"

    def file(self, path: Path | str) -> Changes:
        return self.until(lambda changes: str(path) in changes.files)

    def folder(self, path: Path | str) -> Changes:
        return self.until(lambda changes: str(path) in changes.folders)

    def settle(self) -> Changes:
        """All changes until now: events come in order, so a last one of our own ends them."""
        marker = self.chats / f"marker-{next(self.numbers)}"
        marker.touch()
        changes = self.file(marker)
        return Changes(changes.files - {str(marker)}, changes.folders, changes.everything)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / ".gemini")
    yield home
    home.watcher.stop()


@pytest.fixture(params=[LINUX, MACOS])
def either(home: Home, request: pytest.FixtureRequest) -> Home:
    """A home watched by each backend in turn."""
    home.use(request.param)
    return home


def threads() -> set[threading.Thread]:
    return set(threading.enumerate())


# What is reported


def test_nothing_changed_at_first(either: Home) -> None:
    either.begin()
    assert either.watcher.take() == NOTHING
    assert (either.watcher.mode, either.watcher.unwatched) == ("events", frozenset())


def test_an_appended_file_is_named_within_a_second(either: Home) -> None:
    chat = either.chats / "session-a.jsonl"
    chat.write_bytes(b"one\n")
    either.begin()
    begun = time.monotonic()
    with chat.open("ab") as file:
        file.write(b"two\n")
    assert either.file(chat) == Changes(files=frozenset({str(chat)}))
    assert time.monotonic() - begun < 1
    assert either.watcher.take() == NOTHING, "it is told once"


@pytest.mark.parametrize("change", ["make", "truncate", "delete", "rename", "replace"])
def test_each_change_of_a_file_is_reported(either: Home, change: str) -> None:
    old, new = either.chats / "session-a.jsonl", either.chats / "session-b.jsonl"
    old.write_bytes(b"one\n")
    either.begin()
    if change == "make":
        new.touch()
        either.file(new)
    elif change == "truncate":
        os.truncate(old, 0)
        either.file(old)
    elif change == "delete":
        old.unlink()
        either.file(old)
    elif change == "rename":
        old.rename(new)
        either.until(lambda changes: {str(old), str(new)} <= changes.files)
    else:
        temporary = either.project / "session-a.tmp"
        temporary.write_bytes(b"two\n")
        temporary.rename(old)
        either.file(old)


def test_reading_makes_no_events(either: Home) -> None:
    chat = either.chats / "session-a.jsonl"
    chat.write_bytes(b"one\n")
    either.begin()
    for _ in range(3):
        chat.read_bytes()
        list(either.chats.iterdir())
    assert either.settle() == NOTHING


def test_a_deleted_file_that_is_still_written_is_silent(home: Home) -> None:
    with (home.chats / "session-a.jsonl").open("wb", 0) as file:
        (home.chats / "session-a.jsonl").unlink()
        home.begin()
        file.write(b"one\n")
        assert home.settle() == NOTHING


def test_a_new_chats_folder_is_reported_as_its_project(either: Home) -> None:
    (either.tmp / "blog").mkdir()
    either.begin()
    (either.tmp / "blog" / "chats").mkdir()
    assert either.folder(either.tmp / "blog").files == frozenset()
    assert either.settle() == NOTHING, "it is told once"


def test_a_new_project_is_reported_as_tmp(either: Home) -> None:
    either.begin()
    (either.tmp / "blog").mkdir()
    assert str(either.tmp) in either.folder(either.tmp).folders


def test_a_new_subagent_folder_is_reported_and_watched_after_sync(either: Home) -> None:
    either.begin()
    (either.chats / "parent-id").mkdir()
    either.folder(either.chats)
    either.sync()
    (either.chats / "parent-id" / "agent.jsonl").touch()
    either.file(either.chats / "parent-id" / "agent.jsonl")


def test_a_project_moved_here_is_reported(either: Home, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "chats").mkdir(parents=True)
    either.begin()
    (tmp_path / "elsewhere").rename(either.tmp / "moved")
    either.folder(either.tmp)
    either.sync()
    (either.tmp / "moved" / "chats" / "session-a.jsonl").touch()
    either.file(either.tmp / "moved" / "chats" / "session-a.jsonl")


@pytest.mark.parametrize("name", ["tool-outputs", "logs", "checkpoints"])
def test_other_folders_of_a_project_never_wake(either: Home, name: str) -> None:
    inside = either.project / name / "session-x"
    inside.mkdir(parents=True)
    either.begin()
    for count in range(20):
        (inside / f"{count}.txt").write_bytes(b"output")
    (inside / "1.txt").unlink()
    (inside / "folder").mkdir()
    assert either.settle() == NOTHING


def test_files_of_a_project_folder_never_wake(either: Home) -> None:
    log = either.project / "logs.json"
    log.write_text("[]")
    either.begin()
    for _ in range(5):
        log.write_text("[1]")
        (either.project / "logs.tmp").write_text("[2]")
        (either.project / "logs.tmp").rename(log)
    (either.tmp / "bin").touch()
    (either.root / "settings.json").write_text("{}")
    assert either.settle() == NOTHING


def test_folders_left_out_of_a_sync_are_silent(either: Home) -> None:
    other = either.tmp / "blog" / "chats"
    other.mkdir(parents=True)
    either.begin()
    either.watcher.sync({str(either.chats): FolderKind.FILES})
    (other / "session-a.jsonl").touch()
    (either.tmp / "new").mkdir()
    assert either.settle() == NOTHING


def test_a_folder_can_change_its_kind(either: Home) -> None:
    either.begin()
    either.watcher.sync({**either.folders(), str(either.project): FolderKind.FILES})
    (either.project / "session-a.jsonl").touch()
    either.file(either.project / "session-a.jsonl")
    either.sync()
    (either.project / "session-b.jsonl").touch()
    assert either.settle() == NOTHING


def test_names_that_are_not_utf8_survive(either: Home) -> None:
    folder = os.fsencode(either.chats) + b"/parent-\xff"
    os.mkdir(folder)
    either.begin()
    with open(folder + b"/session-\xe9.jsonl", "wb"):
        pass
    [path] = either.until(lambda changes: bool(changes.files)).files
    assert os.fsencode(path) == folder + b"/session-\xe9.jsonl"


# Folders that go and come back


def test_a_deleted_folder_is_reported_and_watched_again_when_it_is_back(home: Home) -> None:
    home.begin()
    for _ in range(3):
        home.chats.rmdir()
        home.until(lambda changes: {str(home.chats), str(home.project)} <= changes.folders)
        home.sync()
        home.chats.mkdir()
        home.folder(home.project)
        home.sync()
        (home.chats / "session-a.jsonl").touch()
        home.file(home.chats / "session-a.jsonl")
        (home.chats / "session-a.jsonl").unlink()
        home.file(home.chats / "session-a.jsonl")


def test_a_folder_replaced_between_two_syncs_is_watched_again(home: Home) -> None:
    home.begin()
    home.chats.rmdir()
    home.chats.mkdir()
    home.folder(home.chats)
    home.sync()
    (home.chats / "session-a.jsonl").touch()
    home.file(home.chats / "session-a.jsonl")


def test_a_renamed_project_is_watched_under_its_new_name(home: Home) -> None:
    home.begin()
    new = home.tmp / "store"
    home.project.rename(new)
    home.until(lambda changes: {str(home.tmp), str(home.project)} <= changes.folders)
    home.sync()
    (new / "chats" / "session-a.jsonl").touch()
    changes = home.file(new / "chats" / "session-a.jsonl")
    assert changes.files == {str(new / "chats" / "session-a.jsonl")}, "and not under the old one"


def test_a_renamed_project_whose_name_is_taken_at_once_leaves_both_watched(home: Home) -> None:
    home.begin()
    new = home.tmp / "store"
    home.project.rename(new)
    home.chats.mkdir(parents=True)
    home.until(lambda changes: {str(home.tmp), str(home.project)} <= changes.folders)
    home.sync()
    (new / "chats" / "session-a.jsonl").touch()
    assert home.settle().files == {str(new / "chats" / "session-a.jsonl")}


def test_two_names_of_one_folder_are_both_watched(home: Home) -> None:
    """As two roots of which one is a link to the other."""
    other, chat = home.tmp / "link", home.chats / "session-a.jsonl"
    other.symlink_to(home.chats)
    chat.touch()
    home.watcher.start()
    home.watcher.sync({str(home.chats): FolderKind.FILES, str(other): FolderKind.PARENT})
    chat.write_bytes(b"one\n")
    home.file(chat)
    home.watcher.sync({str(other): FolderKind.FILES})
    chat.write_bytes(b"two\n")
    assert home.file(other / chat.name).files == {str(other / chat.name)}


@pytest.mark.parametrize("platform", [LINUX, MACOS])
def test_a_missing_root_is_unwatched_until_it_comes(home: Home, platform: str) -> None:
    missing = home.root.with_name("other")
    home.watcher = Watcher([str(missing)], home.wake, platform)
    home.watcher.start()
    home.watcher.sync({str(missing): FolderKind.PARENT})
    assert home.watcher.unwatched == {str(missing)}
    missing.mkdir()
    home.watcher.sync({str(missing): FolderKind.PARENT})
    assert home.watcher.unwatched == frozenset()
    (missing / "tmp").mkdir()
    home.folder(missing)


# Folders that cannot be watched


def refuse(
    monkeypatch: pytest.MonkeyPatch, path: Path, result: OSError | None
) -> Callable[[], None]:
    """Make inotify refuse one folder, as for a lack of permission when there is no error."""
    real = inotify_c.inotify_add_watch

    def fake(fd: int, name: bytes, mask: int) -> int:
        if name != os.fsencode(path):
            return int(real(fd, name, inotify_c.Mask(mask)))
        ctypes.set_errno(errno.EACCES if result is None else result.errno or 0)
        return -1

    monkeypatch.setattr(inotify_c, "inotify_add_watch", fake)
    return lambda: monkeypatch.setattr(inotify_c, "inotify_add_watch", real)


@pytest.mark.parametrize(
    "error",
    [None, *(OSError(number, "") for number in (errno.ENOSPC, errno.EMFILE, errno.ENOENT))],
    ids=["no permission", "no watches left", "no instances left", "gone"],
)
def test_a_refused_folder_is_unwatched_and_tried_again(
    home: Home, monkeypatch: pytest.MonkeyPatch, error: OSError | None
) -> None:
    allow = refuse(monkeypatch, home.chats, error)
    home.begin()
    home.sync()
    assert isinstance(home.watcher._backend, Inotify)
    assert -1 not in home.watcher._backend._inotify._watch_for_wd
    assert home.watcher.unwatched == {str(home.chats)}
    assert home.watcher.mode == "events"
    allow()
    home.sync()
    assert home.watcher.unwatched == frozenset()
    (home.chats / "session-a.jsonl").touch()
    home.file(home.chats / "session-a.jsonl")


def test_missing_folders_and_files_are_unwatched_without_a_word(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    (home.chats / "file").touch()
    home.watcher.start()
    paths = {str(home.tmp / "missing"), str(home.chats / "file")}
    home.watcher.sync({str(home.tmp): FolderKind.PARENT} | dict.fromkeys(paths, FolderKind.FILES))
    assert home.watcher.unwatched == paths
    assert caplog.records == []


def test_without_a_single_watch_the_mode_is_poll(home: Home) -> None:
    home.watcher.start()
    home.watcher.sync({str(home.tmp / "missing"): FolderKind.FILES})
    assert home.watcher.mode == "poll"


def test_the_watch_limit_is_logged_once_with_its_remedy(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse(monkeypatch, home.chats, OSError(errno.ENOSPC, ""))
    home.begin()
    home.sync()
    [record] = caplog.records
    assert "fs.inotify.max_user_watches" in record.__dict__["fields"]["remedy"]


# Lost events and dead threads


def test_an_overflow_means_everything(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 50_000:
        pytest.skip("the queue of this machine is too long to fill quickly")
    go_on = threading.Event()

    def wake() -> None:
        go_on.wait(10)
        home.wake()

    monkeypatch.setattr(home.watcher._marks, "_wake", wake)
    home.begin()
    with (home.chats / "a").open("wb", 0) as one, (home.chats / "b").open("wb", 0) as two:
        for _ in range(limit // 2 + 5000):  # equal events in a row would become one
            one.write(b"x")
            two.write(b"x")
    go_on.set()
    home.until(lambda changes: changes.everything)
    home.settle()
    assert home.settle() == NOTHING


def test_an_exception_in_wake_is_counted_logged_once_and_kills_nothing(
    either: Home, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise ValueError("wake")

    either.begin()
    monkeypatch.setattr(either.watcher._marks, "_wake", fail)
    for name in ("a", "b", "c"):
        failed.clear()
        (either.chats / name).touch()
        assert failed.wait(1)
    monkeypatch.setattr(either.watcher._marks, "_wake", either.wake)
    assert {str(either.chats / name) for name in "abc"} <= either.settle().files
    assert either.watcher.errors >= 3
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert (either.watcher.mode, either.watcher.restarts) == ("events", 0)


def kill(watcher: Watcher) -> None:
    """End the inotify thread by an unforeseen exception."""
    assert isinstance(watcher._backend, Inotify)
    thread = watcher._backend._inotify

    def die(event: object) -> None:
        raise RuntimeError("unforeseen")

    thread.handle_event = die  # type: ignore[method-assign]
    watched = next(iter(watcher._backend._watched.values()))
    Path(watched.path, "deadly").mkdir()
    thread.join(1)


@deadly
@pytest.mark.parametrize("notice", ["take", "sync"])
def test_a_dead_thread_is_poll_and_started_again_by(home: Home, notice: str) -> None:
    home.begin()
    kill(home.watcher)
    assert home.watcher.mode == "poll"
    if notice == "sync":
        home.sync()
        assert home.woken.is_set(), "so that everything is looked at soon"
    assert home.watcher.take().everything
    assert (home.watcher.mode, home.watcher.restarts) == ("events", 1)
    home.woken.clear()
    (home.chats / "session-a.jsonl").touch()
    assert not home.file(home.chats / "session-a.jsonl").everything


@deadly
def test_a_dead_thread_leaves_no_descriptor(home: Home) -> None:
    home.begin()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        kill(home.watcher)
        (home.root / "deadly").rmdir()
        home.watcher.take()
    assert len(os.listdir("/proc/self/fd")) == before


def test_watching_that_cannot_start_is_poll_and_tried_again(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_left() -> int:
        ctypes.set_errno(errno.EMFILE)
        return -1

    with monkeypatch.context() as patch:
        patch.setattr(inotify_c, "inotify_init", none_left)
        home.begin()
        home.sync()
        assert (home.watcher.mode, home.watcher.restarts) == ("poll", 0)
        assert home.watcher.unwatched == home.folders().keys()
        [record] = caplog.records
        assert "inotify instance limit reached" in record.__dict__["fields"]["error"]
    assert home.watcher.take().everything
    assert (home.watcher.mode, home.watcher.unwatched) == ("events", frozenset())


@deadly
def test_a_dead_thread_that_cannot_be_started_again_means_everything_once(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.begin()
    kill(home.watcher)
    monkeypatch.setattr(inotify_c, "inotify_init", lambda: -1)
    assert home.watcher.take().everything
    assert home.watcher.take() == NOTHING
    assert (home.watcher.mode, home.watcher.restarts) == ("poll", 0)


def test_a_c_library_without_inotify_is_polled(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Unsupported(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            raise UnsupportedLibcError("no inotify_init in this libc")

    name = "watchdog.observers.inotify_c"
    monkeypatch.setitem(sys.modules, name, Unsupported(name))
    monkeypatch.delitem(sys.modules, "exporter.transcripts.inotify")
    home.begin()
    assert (home.watcher.mode, home.watcher.take()) == ("poll", NOTHING)
    [record] = caplog.records
    assert record.__dict__["fields"] == {"error": "no inotify_init in this libc"}


def test_a_system_without_good_events_is_polled(home: Home) -> None:
    home.use("freebsd14")
    home.begin()
    assert (home.watcher.mode, home.watcher.take()) == ("poll", NOTHING)
    assert home.watcher.unwatched == home.folders().keys()


# Threads


def test_one_thread_watches_500_folders(home: Home) -> None:
    for number in range(166):
        (home.tmp / f"project-{number}" / "chats" / "agent").mkdir(parents=True)
    before = threads()
    home.begin()
    assert len(home.folders()) > 500
    assert [thread.name for thread in threads() - before] == ["watcher"]
    assert home.watcher.unwatched == frozenset()


def test_stop_ends_all_threads_and_says_nothing(either: Home) -> None:
    before = threads()
    either.begin()
    either.watcher.stop()
    assert threads() == before
    assert either.watcher.take() == NOTHING
    assert (either.wakes, either.watcher.mode) == (0, "poll")
    either.watcher.stop()


def test_before_start_nothing_is_watched(home: Home) -> None:
    home.sync()
    assert home.watcher.unwatched == home.folders().keys()
    assert (home.watcher.take(), home.watcher.mode) == (NOTHING, "poll")


# The recursive backend, for systems that watch subtrees


def recursive(home: Home, folders: Mapping[str, FolderKind]) -> Recursive:
    home.use(MACOS)
    home.watcher.start()
    home.watcher.sync(folders)
    assert isinstance(home.watcher._backend, Recursive)
    return home.watcher._backend


def test_a_root_that_came_back_is_watched_again(home: Home) -> None:
    backend = recursive(home, home.folders())
    shutil.rmtree(home.root)
    home.folder(home.root)
    for emitter in backend._observer.emitters:
        emitter.join(1)
    home.watcher.sync({})
    assert (home.watcher.mode, home.watcher.restarts) == ("events", 0), "missing is normal"
    home.chats.mkdir(parents=True)
    home.sync()
    assert home.watcher.take().everything
    (home.chats / "session-a.jsonl").touch()
    home.file(home.chats / "session-a.jsonl")
    assert home.watcher.restarts == 1


def test_paths_without_symbolic_links_are_spelt_as_their_root(home: Home) -> None:
    link = home.root.with_name("link")
    link.symlink_to(home.root)
    chats = link / "tmp" / "shop" / "chats"
    watcher = Watcher([str(link)], home.wake, MACOS)
    watcher.start()
    watcher.sync({str(chats): FolderKind.FILES})
    assert isinstance(watcher._backend, Recursive)
    watcher._backend.on_any_event(events.FileModifiedEvent(str(home.chats / "session-a.jsonl")))
    assert watcher.take().files == {str(chats / "session-a.jsonl")}
    watcher.stop()


def test_a_deleted_folder_that_looks_like_a_file_is_a_folder(home: Home) -> None:
    backend = recursive(home, home.folders())
    backend.on_any_event(events.FileDeletedEvent(str(home.chats)))
    assert home.watcher.take() == Changes(folders=frozenset({str(home.chats)}))


# What we use of watchdog beyond its documented interface


def test_watchdog_is_not_imported_before_something_is_watched() -> None:
    """A one-off scan does without it."""
    program = "import exporter.transcripts.collector, sys; print('watchdog' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"False\n"


def test_the_names_of_watchdog_that_we_use_exist() -> None:
    assert list(inspect.signature(inotify_c.InotifyFD.add_callback).parameters) == [
        "self",
        "path",
        "mask",
        "callback",
        "id_",
    ]
    assert list(inspect.signature(inotify_c.InotifyFD.remove_callbacks).parameters) == [
        "self",
        "callbacks",
    ]
    assert issubclass(inotify_c.InotifyFD, threading.Thread)
    for name in ("on_event", "on_watch_deleted", "on_queue_overflow"):
        assert hasattr(inotify_c.WatchCallback, name)
    event = inotify_c.InotifyEvent(
        inotify_c.WatchDescriptor(1), inotify_c.InotifyConstants.IN_ISDIR, 0, b"name"
    )
    assert (event.is_directory, event.name) == (True, b"name")
