"""Loading settings: the order of precedence, and one clear line for each mistake."""

import pytest

from whale_ray.configs.errors import SettingsError
from whale_ray.configs.loading import load_settings
from whale_ray.configs.settings import Settings


@pytest.fixture
def write_yaml(tmp_path, monkeypatch):
    """Write a settings file to the current directory, so that messages name it without a path."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="job.yaml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return name

    return write


def test_nothing_given_means_the_defaults():
    assert load_settings(environ={}) == Settings()


def test_values_in_the_place_of_a_path_are_refused():
    with pytest.raises(SettingsError, match="is no path of a YAML file; give values as overrides="):
        load_settings({"transport.mms_bytes": 2048}, environ={})


def test_later_sources_win(write_yaml):
    first = write_yaml("transport: {mms_bytes: 2048, wtl_ms: 2, spin_pauses: 1}\n", "first.yaml")
    second = write_yaml("transport: {mms_bytes: 4096, wtl_ms: 4}\nruntime:\n", "second.yaml")
    environ = {"WHALE_RAY_TRANSPORT__MMS_BYTES": "8192", "WHALE_RAY_DATA": "/data", "HOME": "/"}
    settings = load_settings(first, second, environ=environ)
    assert settings.transport.spin_pauses == 1  # only in the first file
    assert settings.transport.wtl_ms == 4.0  # the second file wins
    assert settings.transport.mms_bytes == 8192  # the environment wins
    settings = load_settings(
        first, second, environ=environ, overrides={"transport.mms_bytes": "16384"}
    )
    assert settings.transport.mms_bytes == 16384  # the caller wins


def test_settings_that_limit_each_other_may_have_different_origins(write_yaml):
    path = write_yaml("transport: {ring_bytes: 131072}\n")
    environ = {"WHALE_RAY_TRANSPORT__RING_BYTES_MIN": "65536"}
    assert load_settings(path, environ=environ).transport.ring_bytes == 131072


def test_an_empty_file_changes_nothing(write_yaml):
    assert load_settings(write_yaml("# nothing\n"), environ={}) == Settings()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("transport.checksum", "true", True),
        ("transport.checksum", "False", False),
        ("transport.checksum", "1", True),
        ("transport.wtl_ms", "2", 2.0),
        ("transport.wtl_ms", "0.5", 0.5),
        ("runtime.workers", "12", 12),
        ("runtime.spill_directory", "12", "12"),
        ("runtime.on_loss", "restart-at-least-once", "restart-at-least-once"),
    ],
)
def test_texts_are_parsed_by_the_settings_type(name, text, value):
    section, _, field = name.partition(".")
    variable = f"WHALE_RAY_{section}__{field}".upper()
    for settings in (
        load_settings(environ={variable: text}),
        load_settings(environ={}, overrides={name: text}),
        Settings().with_overrides({name: value}),
    ):
        found = getattr(getattr(settings, section), field)
        assert found == value
        assert type(found) is type(value)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"WHALE_RAY_TRANSPORT__MMS_BYTE": "1"},
            "WHALE_RAY_TRANSPORT__MMS_BYTE is not a setting; "
            "did you mean WHALE_RAY_TRANSPORT__MMS_BYTES?",
        ),
        (
            {"WHALE_RAY_RUNTIME_WORKERS": "1"},
            "WHALE_RAY_RUNTIME_WORKERS is not a setting; did you mean WHALE_RAY_RUNTIME__WORKERS?",
        ),
        (
            {"WHALE_RAY_RUNTIME__WORKERS": "two"},
            "WHALE_RAY_RUNTIME__WORKERS must be an integer, not 'two'",
        ),
        (
            {"WHALE_RAY_TRANSPORT__CHECKSUM": "maybe"},
            "WHALE_RAY_TRANSPORT__CHECKSUM must be true or false, not 'maybe'",
        ),
        (
            {"WHALE_RAY_TRANSPORT__HELD_FRACTION": "2"},
            "WHALE_RAY_TRANSPORT__HELD_FRACTION must lie between 0.05 and 0.5, not 2.0",
        ),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(environ, message):
    with pytest.raises(SettingsError) as raised:
        load_settings(environ=environ)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"transport.mms_byte": 1},
            "transport.mms_byte is not a setting; did you mean transport.mms_bytes?",
        ),
        ({"transport.mms": 1}, "transport.mms is not a setting; did you mean transport.mms_bytes?"),
        ({"runtime.mms": 1}, "runtime.mms is not a setting; did you mean transport.mms_bytes?"),
        ({"mms_bytes": 1}, "mms_bytes is not a setting; did you mean transport.mms_bytes?"),
        ({"spark.executor": 1}, "spark.executor is not a setting; did you mean spark.executors?"),
        ({"runtime.workers": None}, "runtime.workers must be an integer, not None"),
        (
            "job.yaml",
            "settings are a mapping of names to values, such as {'runtime.workers': 2}, or what "
            "load_settings(file) returns, not 'job.yaml'",
        ),
        ({5: 1}, "5 is not a setting; did you mean transport.wtl_ms?"),
    ],
)
def test_a_mistake_in_an_override_names_the_key(overrides, message):
    with pytest.raises(SettingsError) as raised:
        load_settings(environ={}, overrides=overrides)
    assert str(raised.value) == message
    with pytest.raises(SettingsError) as raised:
        Settings().with_overrides(overrides)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "transport: {mms_byte: 1}",
            "job.yaml: transport.mms_byte is not a setting; did you mean transport.mms_bytes?",
        ),
        (
            "transprot: {mms_bytes: 1}",
            "job.yaml: transprot is not a setting; did you mean transport?",
        ),
        (
            "workers: 4",
            "job.yaml: workers is not a setting; did you mean runtime.workers?",
        ),
        (
            "transport: {mms_bytes: '65536'}",
            "job.yaml: transport.mms_bytes must be an integer, not '65536'",
        ),
        (
            "transport: {mms_bytes: 1}",
            "job.yaml: transport.mms_bytes must lie between 1,024 and 16,777,216, not 1",
        ),
        ("transport: 5", "job.yaml: transport must be a mapping of settings, not 5"),
        (
            "- transport",
            "job.yaml: expected a mapping of sections (transport, runtime, multicast, spark, "
            "checkpoints, metrics, records), found ['transport']",
        ),
        (
            "runtime:\n  workers: 1\n  workers: 2\n",
            "job.yaml: workers is given twice (line 3); remove one",
        ),
        (
            "runtime: {}\nruntime: {}\n",
            "job.yaml: runtime is given twice (line 2); remove one",
        ),
        (
            "runtime:\n  workers: [1\n",
            "job.yaml, line 3: expected ',' or ']', but got '<stream end>'; "
            "write settings as `section:` and indented `name: value`",
        ),
        (
            "runtime: !!python/object:os.system {}\n",
            "job.yaml, line 1: could not determine a constructor for the tag "
            "'tag:yaml.org,2002:python/object:os.system'; "
            "write settings as `section:` and indented `name: value`",
        ),
        (
            "[a]: 1\n",
            "job.yaml, line 1: found unhashable key; "
            "write settings as `section:` and indented `name: value`",
        ),
        (
            "transport.mms_bytes: 2048",
            "job.yaml: write transport.mms_bytes as `transport:` and, indented below it, "
            "`mms_bytes: …`",
        ),
        (
            "runtime: {workers: 2026-02-30}",
            "job.yaml: day is out of range for month; "
            "write settings as `section:` and indented `name: value`",
        ),
        (
            "runtime: {workers: !!int two}",
            "job.yaml: invalid literal for int() with base 10: 'two'; "
            "write settings as `section:` and indented `name: value`",
        ),
        (
            "runtime: " + 2000 * "[",
            "job.yaml: maximum recursion depth exceeded; "
            "write settings as `section:` and indented `name: value`",
        ),
    ],
)
def test_a_mistake_in_a_file_names_file_and_key(write_yaml, text, message):
    with pytest.raises(SettingsError) as raised:
        load_settings(write_yaml(text), environ={})
    assert str(raised.value) == message


@pytest.mark.parametrize("text", ["1e1", "+1.0e1", "1.E+1", "100e-1", ".1e2", "10", "10.0", "0xa"])
def test_numbers_in_files_are_read_as_python_reads_them(write_yaml, text):
    path = write_yaml(f"transport: {{wtl_ms: {text}}}\n")
    assert load_settings(path, environ={}).transport.wtl_ms == 10.0


@pytest.mark.parametrize(
    ("text", "number"), [("010000", 4096), ("-0_17", -15), ("1:30", 90), ("+1:30:00", 5400)]
)
def test_numbers_of_other_bases_are_refused(write_yaml, text, number):
    with pytest.raises(SettingsError) as caught:
        load_settings(write_yaml(f"transport:\n  mms_bytes: {text}\n"), environ={})
    assert str(caught.value) == (
        f"job.yaml, line 2: {text} is the number {number} in YAML: write it in decimal, without"
        " leading zeros and colons, or a text in quotes"
    )
    name = "records: {folder: '" + text + "'}"
    assert load_settings(write_yaml(name), environ={}).records.folder == text


def test_a_missing_or_unreadable_file_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError) as raised:
        load_settings("absent.yaml", environ={})
    assert str(raised.value) == "absent.yaml: no such settings file"
    (tmp_path / "folder").mkdir()
    with pytest.raises(SettingsError, match="^folder: cannot be read as a settings file: "):
        load_settings("folder", environ={})
