"""Fixtures with real hosts, for every test of the project. How to use them: README.md beside this file."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.hosts import layers
from tests.hosts.lab import Lab, TestHost
from tests.hosts.light_sshd import LightHost, find_sshd

MakeHost = Callable[..., TestHost]
_labs: list[Lab] = []


def _require(reason: str) -> None:
    """Skip, or fail where the run promised real hosts (CI): a skip must not hide a broken set-up."""
    if os.environ.get("REQUIRE_TESTHOST") == "1":
        pytest.fail(f"REQUIRE_TESTHOST=1, but no real host: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that uses the lab runs in its network; the next one is back in the machine's own."""
    uses = "lab" in getattr(item, "fixturenames", ())
    for lab in _labs if uses else ():
        lab.enter()
    try:
        return (yield)
    finally:
        for lab in _labs:
            lab.leave()


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The session's instance of real hosts, without any host yet."""
    reason = Lab.missing()
    if reason:
        _require(reason)
    made = Lab(os.environ.get("TESTHOST_NAME") or f"t{os.getpid()}")
    made.up()
    _labs.append(made)
    made.enter()  # the hook above came too early for the first test
    yield made
    _labs.remove(made)
    made.down()


def _factory(lab: Lab) -> Iterator[MakeHost]:
    made: list[TestHost] = []

    def make(*wanted: Path, **options: object) -> TestHost:
        host = lab.add(wanted, **options)  # type: ignore[arg-type]
        made.append(host)
        return host

    yield make
    for host in made:
        lab.remove(host)


@pytest.fixture
def make_host(lab: Lab) -> Iterator[MakeHost]:
    """``make_host(*layers, disk="2G", binds=[])``: a fresh host in about 0.7 s, gone after the test."""
    yield from _factory(lab)


@pytest.fixture(scope="module")
def make_module_host(lab: Lab) -> Iterator[MakeHost]:
    """As ``make_host``; the hosts live until the module's last test."""
    yield from _factory(lab)


@pytest.fixture
def hosts(make_host: MakeHost) -> Callable[[int], list[TestHost]]:
    """``hosts(n)``: n fresh bare hosts."""
    return lambda n: [make_host() for _ in range(n)]


@pytest.fixture
def testhost(make_host: MakeHost) -> TestHost:
    """A fresh bare host: systemd, sshd, python3 3.11, git, rsync; no SGLang."""
    return make_host()


@pytest.fixture
def wheel_host(lab: Lab, make_host: MakeHost) -> Callable[..., TestHost]:
    """``wheel_host("0.5.20", *more_layers)``: a fresh host with that wheel (no torch) in /root/ml-env."""

    def make(version: str, *more: Path, **options: object) -> TestHost:
        return make_host(*more, layers.wheel_layer(lab, version), **options)

    return make


@pytest.fixture
def origin_host(lab: Lab, make_host: MakeHost) -> TestHost:
    """The origin story: wheel 0.5.13.post1 in /root/ml-env, an older dirty checkout without DFLASH in /root/sglang."""
    return make_host(layers.checkout_layer(lab), layers.wheel_layer(lab, "0.5.13.post1"))


@pytest.fixture(scope="session")
def cpu_layer(lab: Lab) -> Path:
    """The layer with a SGLang that serves on a CPU; made on first use (a minute and downloads)."""
    obstacle = layers.cpu_obstacle()
    if obstacle:
        _require(obstacle)
    return layers.cpu_layer()


@pytest.fixture
def cpu_host(cpu_layer: Path, make_host: MakeHost) -> TestHost:
    """A fresh host that can serve SGLang 0.5.20 on the CPU from /root/ml-env; models in /root/models."""
    return make_host(layers.lab_layer(), cpu_layer, disk="4G")


@pytest.fixture
def light_host() -> Iterator[LightHost]:
    """A plain sshd on loopback as the user who runs the tests; no systemd, no root needed."""
    if find_sshd() is None:
        _require("openssh-server is not installed")
    with LightHost() as host:
        yield host
