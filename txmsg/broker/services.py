"""The services of a broker, each with the parts that it calls."""

from __future__ import annotations

from functools import partial

from txmsg.administration.access import AccessService
from txmsg.administration.alerts import AlertsService
from txmsg.administration.audit import AuditService
from txmsg.administration.cluster import ClusterService
from txmsg.administration.dead_letters import DeadLettersService
from txmsg.administration.groups import GroupsService
from txmsg.administration.halves import AdminService
from txmsg.administration.messages import MessagesService as MessageService
from txmsg.administration.rules import RulesService
from txmsg.administration.schemas import SchemasService
from txmsg.administration.settings import SettingsService
from txmsg.administration.topics import TopicsService
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
from txmsg.broker.parts import BrokerParts
from txmsg.broker.store.access_rules import AccessRules
from txmsg.broker.store.body_keys import BodyKeyStore
from txmsg.broker.store.dead_letters import DeadLetters as DeadLetterStore
from txmsg.broker.store.group_administration import GroupAdministration
from txmsg.broker.store.halves import HalfMessages
from txmsg.broker.store.messages import Messages
from txmsg.broker.store.mirrors import Mirrors
from txmsg.broker.store.retry_administration import RetryAdministration
from txmsg.broker.store.schemas import TopicSchemas
from txmsg.broker.store.topic_settings import TopicAdministration
from txmsg.broker.store.users import Users
from txmsg.wire.handlers import Handlers
from txmsg.wire.users import AccessWatch
from txmsg.wire.v1 import txmsg_rpc


def handlers_of(parts: BrokerParts, figures: BrokerFigures, alerting: Alerting) -> Handlers:
    """Return the handlers of all methods of a broker."""
    storage, delivering, checking, live = parts.storage, parts.delivering, parts.checking, parts.admitting.access
    pool, clients, config = storage.admin_pool, checking.clients, parts.config
    groups, access = GroupAdministration(pool), AccessApi(Users(pool), live)
    return Handlers(
        {
            txmsg_rpc.Notify: _notify(parts),
            AdminService: AdminApi(
                parts.service,
                delivering.delivery,
                HalfMessages(pool),
                groups,
                clients,
                audit=parts.admitting.audit_log,
                drops=storage.retention.counts,
                on_resume=partial(checking.checks.wake, sweep=True),
            ),
            AccessService: access,
            AccessWatch: access,
            RulesService: RulesApi(AccessRules(pool), live),
            AlertsService: AlertsApi(pool, alerting),
            AuditService: parts.admitting.audit_log,
            ClusterService: ClusterApi(Registry(pool), Mirrors(pool), clients, config.broker_id, figures.read),
            DeadLettersService: DeadLettersApi(DeadLetterStore(pool)),
            MessageService: MessagesApi(Messages(pool), BodyKeyStore(pool)),
            GroupsService: GroupsApi(
                groups, RetryAdministration(pool), delivering.delivery, checking.policies, clients
            ),
            SettingsService: SettingsApi(storage.settings),
            SchemasService: SchemasApi(TopicSchemas(pool), storage.topics.ensure),
            TopicsService: TopicsApi(storage.topics, TopicAdministration(pool), lambda: parts.config.retention_s),
        }
    )


def _notify(parts: BrokerParts) -> NotifyApi:
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
