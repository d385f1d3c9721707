"""What a broker answers: its services, each with the parts that it asks."""

from __future__ import annotations

from functools import partial

from txmsg.administration.access import Access
from txmsg.administration.alerts import Alerts
from txmsg.administration.audit import Audit
from txmsg.administration.cluster import Cluster
from txmsg.administration.dead_letters import DeadLetters
from txmsg.administration.groups import Groups
from txmsg.administration.halves import Admin
from txmsg.administration.messages import Messages as MessageService
from txmsg.administration.rules import Rules
from txmsg.administration.schemas import Schemas
from txmsg.administration.settings import Settings
from txmsg.administration.topics import Topics
from txmsg.broker.alerts.alerting import Alerting
from txmsg.broker.api.access import AccessApi
from txmsg.broker.api.admin import AdminApi
from txmsg.broker.api.alerts import AlertsApi
from txmsg.broker.api.cluster import ClusterApi
from txmsg.broker.api.dead_letters import DeadLettersApi
from txmsg.broker.api.groups import GroupsApi
from txmsg.broker.api.messages import MessagesApi
from txmsg.broker.api.notify import NotifyApi
from txmsg.broker.api.rules import RulesApi
from txmsg.broker.api.schemas import SchemasApi
from txmsg.broker.api.settings import SettingsApi
from txmsg.broker.api.topics import TopicsApi
from txmsg.broker.cluster import Registry
from txmsg.broker.figures import BrokerFigures
from txmsg.broker.parts import Parts
from txmsg.broker.store.access_rules import AccessRules
from txmsg.broker.store.body_keys import BodyKeys
from txmsg.broker.store.dead_letters import DeadLetters as DeadLetterStore
from txmsg.broker.store.group_administration import GroupAdministration
from txmsg.broker.store.halves import Halves
from txmsg.broker.store.messages import Messages
from txmsg.broker.store.mirrors import Mirrors
from txmsg.broker.store.retry_administration import RetryAdministration
from txmsg.broker.store.schemas import TopicSchemas
from txmsg.broker.store.topic_settings import TopicAdministration
from txmsg.broker.store.users import Users
from txmsg.wire.handlers import Handlers
from txmsg.wire.users import AccessWatch
from txmsg.wire.v1 import txmsg_rpc


def handlers_of(parts: Parts, figures: BrokerFigures, alerting: Alerting) -> Handlers:
    """All methods of a broker."""
    storage, delivering, checking, live = parts.storage, parts.delivering, parts.checking, parts.admitting.access
    pool, clients, config = storage.admin_pool, checking.clients, parts.config
    groups, access = GroupAdministration(pool), AccessApi(Users(pool), live)
    return Handlers(
        {
            txmsg_rpc.Notify: _notify(parts),
            Admin: AdminApi(
                parts.service,
                delivering.delivery,
                Halves(pool),
                groups,
                clients,
                audit=parts.admitting.audit_log,
                drops=storage.retention.counts,
                on_resume=partial(checking.checks.wake, sweep=True),
            ),
            Access: access,
            AccessWatch: access,
            Rules: RulesApi(AccessRules(pool), live),
            Alerts: AlertsApi(pool, alerting),
            Audit: parts.admitting.audit_log,
            Cluster: ClusterApi(Registry(pool), Mirrors(pool), clients, config.broker_id, figures.read),
            DeadLetters: DeadLettersApi(DeadLetterStore(pool)),
            MessageService: MessagesApi(Messages(pool), BodyKeys(pool)),
            Groups: GroupsApi(groups, RetryAdministration(pool), delivering.delivery, checking.policies, clients),
            Settings: SettingsApi(storage.settings),
            Schemas: SchemasApi(TopicSchemas(pool), storage.topics.ensure),
            Topics: TopicsApi(storage.topics, TopicAdministration(pool), lambda: parts.config.retention_s),
        }
    )


def _notify(parts: Parts) -> NotifyApi:
    return NotifyApi(
        parts.service,
        parts.delivering.delivery,
        parts.checking.halves,
        parts.checking.clients,
        parts.sending.scheduled,
        bodies=parts.sending.bodies,
        routes=parts.delivering.membership,
        incarnation=parts.storage.pool.incarnation,
        stopping=parts.stop,
        authenticates=parts.config.authentication,
    )
