// As the scenario `push` of client.py: node push.js HOST:PORT TOPIC.
'use strict';

const { ConsumeResult, Producer, PushConsumer } = require('rocketmq-client-nodejs');
const { TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const WANTED = ['fails once', '1 of a', '2 of a', '3 of a', 'delayed', 'committed', 'checked'];
const DONE_MS_MAX = 300_000;
const [endpoints, topic] = process.argv.slice(2);
const where = { endpoints, namespace: '', requestTimeout: 20_000 };
const tell = facts => console.log(JSON.stringify(facts));

const handled = new Set();
const hasAll = new Promise((resolve, reject) => {
  const late = setTimeout(() => reject(new Error(`only came: ${[...handled]}`)), DONE_MS_MAX);
  handled.check = () => {
    if (WANTED.every(body => handled.has(body))) {
      clearTimeout(late);
      resolve();
    }
  };
});

function consume(message) {
  const body = message.body.toString();
  tell({ body, attempt: message.deliveryAttempt });
  if (body === 'fails once' && message.deliveryAttempt === 1) return ConsumeResult.FAILURE;
  handled.add(body);
  handled.check();
  return ConsumeResult.SUCCESS;
}

async function check(message) {
  const body = message.body.toString();
  tell({ checked: body });
  return body === 'checked' ? TransactionResolution.COMMIT : TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED;
}

async function main() {
  const consumer = new PushConsumer({
    ...where,
    consumerGroup: 'push',
    subscriptions: new Map([[topic, '*']]),
    messageListener: { consume },
  });
  await consumer.startup();
  const producer = new Producer({ ...where, topics: [topic], checker: { check } });
  await producer.startup();
  const message = (body, more = {}) => ({ topic, body: Buffer.from(body), ...more });
  await producer.send(message('fails once'));
  for (const number of [1, 2, 3]) await producer.send(message(`${number} of a`, { messageGroup: 'a' }));
  await producer.send(message('delayed', { deliveryTimestamp: new Date(Date.now() + 2000) }));
  for (const [body, end] of [['committed', 'commit'], ['rolled back', 'rollback'], ['checked', null]]) {
    const transaction = producer.beginTransaction();
    await producer.send(message(body), transaction);
    if (end !== null) await transaction[end]();
  }
  await hasAll;
  await producer.shutdown();
  await consumer.shutdown();
}

// Of what the client leaves behind when it is shut down, a timer would hold up the end.
main().then(() => process.exit(), error => { console.error(error); process.exit(1); });
