CREATE TABLE IF NOT EXISTS txmsg_fence (
	transaction_id CHAR(32) NOT NULL,
	outcome VARCHAR(8) NOT NULL CHECK (outcome IN ('commit', 'rollback')),
	created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6) - INTERVAL 0 SECOND),
	PRIMARY KEY (transaction_id)
)ENGINE=InnoDB COMMENT='One row per business transaction that sends txmsg messages: the proof of its outcome.';

CREATE TABLE IF NOT EXISTS txmsg_fence_identity (
	one SMALLINT NOT NULL CHECK (one = 1),
	fence_id CHAR(32) NOT NULL,
	revision VARCHAR(4) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'Of txmsg''s tables here.',
	PRIMARY KEY (one)
)ENGINE=InnoDB COMMENT='Which fence this is: a check is never answered from another database.';

CREATE TABLE IF NOT EXISTS txmsg_inbox (
	group_name VARCHAR(127) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	message_id VARCHAR(48) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	generation INTEGER NOT NULL COMMENT 'Rises with each request to handle the message again. The last one that was handled.',
	handled_at DATETIME NOT NULL DEFAULT (now()),
	PRIMARY KEY (group_name, message_id)
)ENGINE=InnoDB COMMENT='Messages whose effects are in this database: a repeat is skipped.';

CREATE INDEX ix_txmsg_inbox_handled_at ON txmsg_inbox (handled_at);

CREATE TABLE IF NOT EXISTS txmsg_outbox (
	seq BIGINT NOT NULL AUTO_INCREMENT,
	group_name VARCHAR(127) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	transaction_id CHAR(32) NOT NULL,
	ordering_key VARCHAR(1536) CHARACTER SET ascii COLLATE ascii_bin COMMENT 'In UTF-8, percent-encoded.',
	size_bytes INTEGER NOT NULL,
	written_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6) - INTERVAL 0 SECOND),
	refused TEXT COMMENT 'Why the brokers did not take it.',
	messages LONGTEXT CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'A SendRequest of txmsg.v1, in base64.',
	PRIMARY KEY (seq)
)ENGINE=InnoDB COMMENT='Messages of committed transactions that no broker took at the time.';

CREATE INDEX txmsg_outbox_key ON txmsg_outbox (group_name, ordering_key);

CREATE INDEX txmsg_outbox_seq ON txmsg_outbox (group_name, seq);

CREATE TABLE IF NOT EXISTS txmsg_outbox_turn (
	group_name VARCHAR(127) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	holder CHAR(32) NOT NULL,
	taken_at DATETIME(6) NOT NULL,
	waiting INTEGER NOT NULL COMMENT 'Rows of the group, as it counted them.' DEFAULT '0',
	refused INTEGER NOT NULL COMMENT 'Those of them that brokers refused.' DEFAULT '0',
	PRIMARY KEY (group_name)
)ENGINE=InnoDB COMMENT='Which process relays the outbox of a producer group.';

INSERT INTO txmsg_fence_identity (one, fence_id, revision) SELECT 1, REPLACE(UUID(), '-', ''), '0001' WHERE NOT EXISTS (SELECT 1 FROM txmsg_fence_identity);
