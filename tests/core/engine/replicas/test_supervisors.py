"""What each of several replicas has of its own, and that one is as it was without any others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.scripted import write_scripted_model

from tokenspeed import LLM
from tokenspeed.config.schema import ServeConfig
from tokenspeed.engine.messages import TenantFigures
from tokenspeed.engine.replicas.supervisors import addresses_of, records_of, settings_of_replica
from tokenspeed.errors import ConfigError


def test_a_single_replica_has_the_servers_own_settings_address_and_folder() -> None:
    config = ServeConfig(kv_events="tcp://*:5557", record="/r")
    assert settings_of_replica(config, 0) is config
    assert addresses_of(1, Path("/f")) == ("ipc:///f/engine",)
    assert records_of(1, Path("/f"))[0].parent == Path("/f")


def test_ports_count_up_and_files_and_folders_end_in_the_number() -> None:
    config = ServeConfig(
        replicas=3,
        kv_events="tcp://*:5557",
        kv_events_replay="ipc:///run/replay",
        record="/tmp/record",
        kv_store_folder="/store",
    )
    own = settings_of_replica(config, 2)
    assert own.kv_events == "tcp://*:5559"
    assert own.kv_events_replay == "ipc:///run/replay.2"
    assert own.record == "/tmp/record.2"
    assert own.kv_store_folder == "/store/replica2"


def test_what_is_not_set_stays_so_and_a_port_that_the_system_chooses_too() -> None:
    own = settings_of_replica(ServeConfig(replicas=2, kv_events="tcp://127.0.0.1:*"), 1)
    assert own.kv_events == "tcp://127.0.0.1:*"
    assert (own.kv_events_replay, own.record, own.kv_store_folder) == ("", "", "")


def test_ports_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ConfigError, match="65535"):
        settings_of_replica(ServeConfig(replicas=4, kv_events="tcp://*:65534"), 0)


def test_addresses_and_records_of_several_are_different_ones() -> None:
    assert len(set(addresses_of(16, Path("/f")))) == 16
    assert len(set(records_of(16, Path("/f")))) == 16


def test_shares_of_a_tenants_figures_add_up() -> None:
    share = TenantFigures(10, 11).share(4)
    assert (share.floor_bytes, share.cap_bytes) == (3, 2)
    assert TenantFigures().share(4) == TenantFigures()


def test_in_one_process_there_is_one_replica(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model")
    with pytest.raises(ConfigError, match="tokenspeed serve --replicas"):
        LLM(model, plugins="sdk", replicas=2)
