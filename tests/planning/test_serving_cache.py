"""The cache of answers: memory, disk, and entries that are broken."""

import json
import logging
import multiprocessing
import os
import threading

import pytest

from jaxagent.planning.serving.cache import AnswerCache


def test_the_least_recently_used_goes_first():
    cache = AnswerCache(capacity=2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]
    assert (cache.counts["memory"], cache.counts["misses"]) == (3, 1)


def test_answers_outlive_the_process(tmp_path):
    folder = tmp_path / "new" / "cache"
    AnswerCache(folder=folder).put("key \ud800 任务", {"x": [1.5, None]})
    other = AnswerCache(folder=folder)
    assert other.get("key \ud800 任务") == {"x": [1.5, None]}
    assert other.get("another key") is None
    assert (other.counts["disk"], other.counts["misses"]) == (1, 1)
    assert other.get("key \ud800 任务") is not None
    assert other.counts["memory"] == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"format": 1, "key": "k", "ans',
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b"[1]",
        b"null",
        json.dumps({"format": 1, "key": "another", "answer": 1}).encode(),
        json.dumps({"format": 0, "key": "k", "answer": 1}).encode(),
        json.dumps({"format": 1, "key": "k", "answer": None}).encode(),
    ],
)
def test_a_broken_entry_is_ignored_in_one_line_and_replaced(tmp_path, content, caplog):
    AnswerCache(folder=tmp_path).put("k", 1)
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    cache = AnswerCache(folder=tmp_path)
    with caplog.at_level(logging.WARNING):
        assert cache.get("k") is None
    assert [record.getMessage().count("\n") for record in caplog.records] == [0]
    assert cache.counts["corrupted"] == 1
    cache.put("k", 2)
    assert AnswerCache(folder=tmp_path).get("k") == 2


def test_no_draft_is_left_when_writing_fails(tmp_path, monkeypatch, caplog):
    cache = AnswerCache(folder=tmp_path)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with caplog.at_level(logging.WARNING):
        for n in range(3):
            cache.put(f"k{n}", n)
    assert cache.get("k1") == 1
    assert list(tmp_path.iterdir()) == []
    assert len(caplog.records) == 1
    assert cache.counts["unwritten"] == 3


def _write_many(folder):
    cache = AnswerCache(folder=folder)
    for n in range(100):
        cache.put("shared", {"n": n, "padding": "x" * 20_000})


def test_readers_never_see_half_an_entry(tmp_path):
    writer = multiprocessing.get_context("spawn").Process(target=_write_many, args=(tmp_path,))
    writer.start()
    reads = 0
    while writer.is_alive():
        cache = AnswerCache(folder=tmp_path)
        cache.get("shared")
        reads += cache.counts["disk"]
        assert cache.counts["corrupted"] == 0
    writer.join()
    assert writer.exitcode == 0
    assert reads > 0
    assert AnswerCache(folder=tmp_path).get("shared")["n"] == 99


def test_threads_share_it(tmp_path):
    cache = AnswerCache(capacity=8, folder=tmp_path)

    def use(thread):
        for n in range(50):
            cache.put(f"{n % 16}", n % 16)
            found = cache.get(f"{(n + thread) % 16}")
            assert found in (None, (n + thread) % 16)

    errors = []
    threads = [threading.Thread(target=lambda i=i: _collect(errors, use, i)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert cache.counts["corrupted"] == 0


def _collect(errors, function, argument):
    try:
        function(argument)
    except BaseException as error:
        errors.append(error)


def test_bad_arguments_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"capacity \(0\) must be at least 1"):
        AnswerCache(capacity=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cache folder"):
        AnswerCache(folder=tmp_path / "file")
