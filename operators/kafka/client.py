"""Clients of a Kafka cluster: their configuration, and what their errors mean for the user.

The package is confluent-kafka, an extra; its clients work in threads of their own, in C. They try
again by themselves what can be tried again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...configs.errors import InputError
from ...configs.extras import require_extra
from ..arguments import check_type, names

if TYPE_CHECKING:
    import confluent_kafka

__all__ = ["ANSWER_S", "ClientErrors", "KafkaCluster"]

ANSWER_S = 15.0
"""How long a broker may take to answer where the caller waits for it."""

_MESSAGE_TIMEOUT_MS = 300_000  # librdkafka's

_OWN = {
    "bootstrap.servers": "pass bootstrap_servers=",
    "group.id": "pass group= to a source",
    "transactional.id": "a sink makes one of the job's id",
    "auto.offset.reset": "pass on_expired= to a source",
    "enable.auto.commit": "offsets are kept in checkpoints",
    "enable.auto.offset.store": "offsets are kept in checkpoints",
    "enable.partition.eof": "a source needs it",
    "enable.idempotence": "a sink needs it",
    "error_cb": "the job tells the client's errors",
}
_WRONG_TYPE = (TypeError, ValueError)  # of a value, which the client says in a line
_UNREACHABLE = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_RESOLVE")
_REFUSED = ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL")
_FORBIDDEN = (
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
)
_GONE = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID")


class ClientErrors:
    """The errors that a client reports of itself, of which the most telling one is kept."""

    def __init__(self) -> None:
        self.refused: confluent_kafka.KafkaError | None = None
        """Credentials or certificates were refused; trying again does not help."""
        self.last = ""
        """What the client said last, in a line; empty if nothing."""

    def __call__(self, error: confluent_kafka.KafkaError) -> None:
        """Take one; called by the client, from within its own calls."""
        self.last = error.str().partition("\n")[0]
        if error.name() in _REFUSED:
            self.refused = error


@dataclass(frozen=True)
class KafkaCluster:
    """Where a cluster is, and how clients connect to it.

    Attributes:
        bootstrap_servers: `host:port`, with commas between several.
        config: further settings of the client, as librdkafka names them; may hold passwords.
    """

    bootstrap_servers: str
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, bootstrap_servers: str | Sequence[str], config: Mapping[str, Any] | None
    ) -> KafkaCluster:
        """Check what a user passed.

        Raises:
            UsageError: an argument has another type.
            InputError: no server, or a setting that is not for the user.
            ResourceError: confluent-kafka is not installed.
        """
        require_extra("kafka", "Kafka")
        wanted = "'host:port', or a list of these"
        servers = ",".join(
            names("kafka", "bootstrap_servers", bootstrap_servers, wanted, or_one=True)
        )
        wanted = "a mapping of librdkafka's names to values"
        check_type("kafka", "config", config, (Mapping, type(None)), wanted)
        if not servers.strip(", "):
            msg = "kafka() got no bootstrap_servers; pass one such as 'broker-1:9092'"
            raise InputError(msg)
        for name in config or {}:
            if name in _OWN:
                msg = f"config={{{name!r}: …}} cannot be set for Kafka: {_OWN[name]}"
                raise InputError(msg)
        return cls(servers, dict(config or {}))

    def consumer(
        self, settings: Mapping[str, Any], errors: ClientErrors
    ) -> confluent_kafka.Consumer:
        """Connect a consumer; `settings` win over the user's, but not over its isolation level.

        Raises:
            InputError: the client does not know a setting.
        """
        import confluent_kafka

        defaults = {"isolation.level": "read_committed"}
        try:
            return confluent_kafka.Consumer(self._settings(defaults, settings, errors))
        except (confluent_kafka.KafkaException, *_WRONG_TYPE) as error:
            raise InputError(self._refused_setting(error)) from None

    def admin(self, errors: ClientErrors) -> confluent_kafka.admin.AdminClient:
        """Connect a client that asks about topics.

        Raises:
            InputError: the client does not know a setting.
        """
        import confluent_kafka.admin

        try:
            return confluent_kafka.admin.AdminClient(self._settings({}, {}, errors))
        except (confluent_kafka.KafkaException, *_WRONG_TYPE) as error:
            raise InputError(self._refused_setting(error)) from None

    def producer(
        self,
        settings: Mapping[str, Any],
        errors: ClientErrors,
        defaults: Mapping[str, Any] | None = None,
    ) -> confluent_kafka.Producer:
        """Connect a producer; `settings` win over the user's, which win over `defaults`.

        Without a partitioner of the user's, keys go to the partitions to which Java's clients send.

        Raises:
            InputError: the client does not know a setting.
        """
        import confluent_kafka

        defaults = {"partitioner": "murmur2_random", **(defaults or {})}
        settings = {"delivery.report.only.error": False, **settings}  # each answer is counted
        try:
            return confluent_kafka.Producer(self._settings(defaults, settings, errors))
        except (confluent_kafka.KafkaException, *_WRONG_TYPE) as error:
            raise InputError(self._refused_setting(error)) from None

    def explain(
        self, error: confluent_kafka.KafkaError, what: str, errors: ClientErrors | None = None
    ) -> str:
        """Return one line for an error: what could not be done, why, and the remedy.

        Args:
            error: the client's.
            what: such as "cannot read topic 'orders'".
            errors: what the client has reported of itself, which may say more.
        """
        if errors is not None and errors.refused is not None:
            error = errors.refused
        reason, name = error.str().splitlines()[0], error.name()
        where = f"{what} of Kafka at {self.bootstrap_servers}"
        if name in _REFUSED:
            remedy = (
                "the credentials or certificates were refused; correct security.protocol, "
                "sasl.* and ssl.* in config="
            )
        elif name in _UNREACHABLE:
            remedy = "no broker answers; start it, or correct bootstrap_servers="
        elif name in _FORBIDDEN:
            remedy = "the user may not; let the cluster's administrator allow it (an ACL)"
        elif name in _GONE:
            remedy = "it is not there; create it, or correct its name"
        elif name == "INVALID_TRANSACTION_TIMEOUT":
            remedy = (
                "the brokers' transaction.max.timeout.ms is shorter; pass a shorter "
                "'transaction.timeout.ms' in config="
            )
        elif name == "MSG_SIZE_TOO_LARGE":
            remedy = "raise message.max.bytes here (config=) and in the topic, or write less a row"
        else:
            remedy = "see the brokers' log"
        return f"{where}: {reason} ({name}); {remedy}"

    def silence(self, topic: str, silent_s: float, errors: ClientErrors) -> str:
        """Return one line for brokers that take no message, and what the producer does."""
        names = ("message.timeout.ms", "delivery.timeout.ms")
        given = (self.config[name] for name in names if name in self.config)
        timeout_s = float(next(given, _MESSAGE_TIMEOUT_MS)) / 1000
        said = f" ({errors.last})" if errors.last else ""
        return (
            f"no broker of Kafka at {self.bootstrap_servers} has taken a message of the topic "
            f"{topic!r} for {silent_s:.0f} s{said}; it goes on trying, and gives a message up after"
            f" {timeout_s:.0f} s (message.timeout.ms in config=): then the job goes back to its "
            "last checkpoint, or fails without one"
        )

    def _settings(
        self, defaults: Mapping[str, Any], settings: Mapping[str, Any], errors: ClientErrors
    ) -> dict[str, Any]:
        return {
            **defaults,
            "log_level": 2,  # what a client logs, errors tell
            **self.config,
            "bootstrap.servers": self.bootstrap_servers,
            "error_cb": errors,
            **settings,
        }

    def _refused_setting(self, error: Exception) -> str:
        reason = error if isinstance(error, _WRONG_TYPE) else error.args[0].str()
        return f"the client of Kafka at {self.bootstrap_servers} refuses config=: {reason}"
