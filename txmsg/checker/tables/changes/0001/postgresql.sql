CREATE TABLE IF NOT EXISTS txmsg_fence (
	transaction_id UUID NOT NULL,
	outcome VARCHAR(8) NOT NULL CHECK (outcome IN ('commit', 'rollback')),
	created_at TIMESTAMP WITH TIME ZONE DEFAULT now() - make_interval(secs => 0) NOT NULL,
	PRIMARY KEY (transaction_id)
);

COMMENT ON TABLE txmsg_fence IS 'One row per business transaction that sends txmsg messages: the proof of its outcome.';

CREATE TABLE IF NOT EXISTS txmsg_fence_identity (
	one SMALLINT NOT NULL CHECK (one = 1),
	fence_id UUID NOT NULL,
	revision VARCHAR(4) NOT NULL,
	PRIMARY KEY (one)
);

COMMENT ON TABLE txmsg_fence_identity IS 'Which fence this is: a check is never answered from another database.';

COMMENT ON COLUMN txmsg_fence_identity.revision IS 'Of txmsg''s tables here.';

CREATE TABLE IF NOT EXISTS txmsg_inbox (
	group_name VARCHAR(127) NOT NULL,
	message_id VARCHAR(48) NOT NULL,
	generation INTEGER NOT NULL,
	handled_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
	PRIMARY KEY (group_name, message_id)
);

COMMENT ON TABLE txmsg_inbox IS 'Messages whose effects are in this database: a repeat is skipped.';

COMMENT ON COLUMN txmsg_inbox.generation IS 'Rises with each request to handle the message again. The last one that was handled.';

CREATE INDEX IF NOT EXISTS ix_txmsg_inbox_handled_at ON txmsg_inbox (handled_at);

CREATE TABLE IF NOT EXISTS txmsg_outbox (
	seq BIGSERIAL NOT NULL,
	group_name VARCHAR(127) NOT NULL,
	transaction_id UUID NOT NULL,
	ordering_key VARCHAR(1536),
	size_bytes INTEGER NOT NULL,
	written_at TIMESTAMP WITH TIME ZONE DEFAULT now() - make_interval(secs => 0) NOT NULL,
	refused TEXT,
	messages TEXT NOT NULL,
	PRIMARY KEY (seq)
);

COMMENT ON TABLE txmsg_outbox IS 'Messages of committed transactions that no broker took at the time.';

COMMENT ON COLUMN txmsg_outbox.ordering_key IS 'In UTF-8, percent-encoded.';

COMMENT ON COLUMN txmsg_outbox.refused IS 'Why the brokers did not take it.';

COMMENT ON COLUMN txmsg_outbox.messages IS 'A SendRequest of txmsg.v1, in base64.';

CREATE INDEX IF NOT EXISTS txmsg_outbox_key ON txmsg_outbox (group_name, ordering_key);

CREATE INDEX IF NOT EXISTS txmsg_outbox_seq ON txmsg_outbox (group_name, seq);

CREATE TABLE IF NOT EXISTS txmsg_outbox_turn (
	group_name VARCHAR(127) NOT NULL,
	holder UUID NOT NULL,
	taken_at TIMESTAMP WITH TIME ZONE NOT NULL,
	waiting INTEGER DEFAULT '0' NOT NULL,
	refused INTEGER DEFAULT '0' NOT NULL,
	PRIMARY KEY (group_name)
);

COMMENT ON TABLE txmsg_outbox_turn IS 'Which process relays the outbox of a producer group.';

COMMENT ON COLUMN txmsg_outbox_turn.waiting IS 'Rows of the group, as it counted them.';

COMMENT ON COLUMN txmsg_outbox_turn.refused IS 'Those of them that brokers refused.';

INSERT INTO txmsg_fence_identity (one, fence_id, revision) SELECT 1, gen_random_uuid(), '0001' WHERE NOT EXISTS (SELECT 1 FROM txmsg_fence_identity);
