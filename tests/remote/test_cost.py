"""What a run costs on the line, through a relay that counts; and a line that breaks at any byte."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from ddtree_ops.errors import HostUnreachable
from ddtree_ops.inventory import Host
from ddtree_ops.remote import bundle, channel, ssh
from ddtree_ops.remote.connection import connect
from tests.hosts.light_sshd import LightHost
from tests.remote.conftest import ssh_host
from tests.remote.relay import Relay

Through = Callable[[Relay], Host]


@pytest.fixture
def through(light: LightHost, tmp_path: Path) -> Through:
    """The host ``light`` as it is reached through a relay."""

    def host(relay: Relay) -> Host:
        known = tmp_path / "known_hosts"
        known.write_text(Path(light.known_hosts).read_text().replace(str(light.port), str(relay.port)))
        return msgspec.structs.replace(ssh_host(light, known_hosts=(str(known),)), port=relay.port)

    return host


@contextmanager
def _relay(light: LightHost, delay: float = 0.0, cut_after: int | None = None) -> Iterator[Relay]:
    with Relay(light.port, delay, cut_after) as relay:
        yield relay


def test_flights_and_bytes_of_a_look(light: LightHost, through: Through) -> None:
    """Measured: 8 flights until the first reply, 1 for each further call, 11 in all with the goodbye.

    The bytes are the core and the modules of the verb (compressed) and less than 12 KB for SSH itself.
    """
    with _relay(light) as relay:
        with connect(through(relay)) as link:
            link.call("ping")
            first = relay.traffic.flights
            link.call("ping")
            second = relay.traffic.flights
            sent = link.bytes_sent
        assert first <= 10
        assert second - first <= 2
        assert relay.traffic.flights <= 14
        assert sent <= len(bundle.bundle().packed) + 1024
        assert relay.traffic.to_server <= sent + 12_000
        assert relay.traffic.to_client <= 12_000


def test_round_trips_set_the_time(light: LightHost, through: Through) -> None:
    """At 40 ms round trip the line costs about 9 of them (measured), not dozens."""
    with _relay(light, delay=0.02) as relay:
        start = time.monotonic()
        with connect(through(relay)) as link:
            connected = time.monotonic() - start
            again = min(link.ping() for _ in range(4))
    assert connected >= 0.2
    assert 0.04 <= again < 0.2


def _talk(host: Host) -> None:
    with connect(host) as link:
        link.silence = 4.0
        for number in range(400):
            assert link.call("echo", {"n": number}) == {"n": number}


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("cut_after", [0, 10, 700, 1500, 2500, 3000, 4500, 7000, 9000, 9500, 20000])
def test_a_line_that_breaks_at_any_byte_is_an_error_and_never_a_result(
    light: LightHost, through: Through, monkeypatch: pytest.MonkeyPatch, cut_after: int
) -> None:
    """From the banner through key exchange, login and program into the first requests; told at once."""
    monkeypatch.setattr(ssh, "_RETRIES", ())
    with _relay(light, cut_after=cut_after) as relay:
        host = through(relay)
        start = time.monotonic()
        with pytest.raises(HostUnreachable) as caught:
            _talk(host)
        assert caught.value.exit_code == 3
        assert time.monotonic() - start < 6


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("cut_after", [10, 1500, 3000, 4500, 9000, 20000])
def test_a_line_that_stalls_at_any_byte_meets_a_deadline(
    light: LightHost, through: Through, monkeypatch: pytest.MonkeyPatch, cut_after: int
) -> None:
    """Nothing is closed, nothing is answered: each phase must have a limit of its own."""
    monkeypatch.setattr(ssh, "_RETRIES", ())
    monkeypatch.setattr(ssh, "HANDSHAKE", 3.0)
    monkeypatch.setattr(ssh, "CHANNEL_OPEN", 3.0)
    monkeypatch.setattr(channel, "STARTUP", 4.0)
    with Relay(light.port, cut_after=cut_after, stall=True) as relay:
        host = through(relay)
        host = msgspec.structs.replace(host, ssh=msgspec.structs.replace(host.ssh, connect_timeout=3.0))
        start = time.monotonic()
        with pytest.raises(HostUnreachable):
            _talk(host)
        assert time.monotonic() - start < 20
