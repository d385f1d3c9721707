CREATE TABLE IF NOT EXISTS txmsg_fence (
	transaction_id CHAR(32) NOT NULL,
	outcome VARCHAR(8) NOT NULL CHECK (outcome IN ('commit', 'rollback')),
	created_at DATETIME DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now', -(0) || ' seconds')) NOT NULL,
	PRIMARY KEY (transaction_id)
);

CREATE TABLE IF NOT EXISTS txmsg_fence_identity (
	one SMALLINT NOT NULL CHECK (one = 1),
	fence_id CHAR(32) NOT NULL,
	revision VARCHAR(4) NOT NULL,
	PRIMARY KEY (one)
);

CREATE TABLE IF NOT EXISTS txmsg_inbox (
	group_name VARCHAR(127) NOT NULL,
	message_id VARCHAR(48) NOT NULL,
	generation INTEGER NOT NULL,
	handled_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL,
	PRIMARY KEY (group_name, message_id)
);

CREATE INDEX IF NOT EXISTS ix_txmsg_inbox_handled_at ON txmsg_inbox (handled_at);

CREATE TABLE IF NOT EXISTS txmsg_outbox (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	group_name VARCHAR(127) NOT NULL,
	transaction_id CHAR(32) NOT NULL,
	ordering_key VARCHAR(1536),
	size_bytes INTEGER NOT NULL,
	written_at DATETIME DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now', -(0) || ' seconds')) NOT NULL,
	refused TEXT,
	messages TEXT NOT NULL
);

CREATE INDEX IF NOT EXISTS txmsg_outbox_key ON txmsg_outbox (group_name, ordering_key);

CREATE INDEX IF NOT EXISTS txmsg_outbox_seq ON txmsg_outbox (group_name, seq);

CREATE TABLE IF NOT EXISTS txmsg_outbox_turn (
	group_name VARCHAR(127) NOT NULL,
	holder CHAR(32) NOT NULL,
	taken_at DATETIME NOT NULL,
	waiting INTEGER DEFAULT '0' NOT NULL,
	refused INTEGER DEFAULT '0' NOT NULL,
	PRIMARY KEY (group_name)
);

INSERT INTO txmsg_fence_identity (one, fence_id, revision) SELECT 1, lower(hex(randomblob(16))), '0001' WHERE NOT EXISTS (SELECT 1 FROM txmsg_fence_identity);
