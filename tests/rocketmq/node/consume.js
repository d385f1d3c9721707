// As the scenario `consume` of client.py: node consume.js HOST:PORT TOPIC GROUP.
'use strict';

const { ConsumeResult, PushConsumer } = require('rocketmq-client-nodejs');

const [endpoints, topic, consumerGroup] = process.argv.slice(2);

function consume(message) {
  console.log(JSON.stringify({ body: message.body.toString(), attempt: message.deliveryAttempt }));
  return ConsumeResult.SUCCESS;
}

new PushConsumer({
  endpoints,
  namespace: '',
  requestTimeout: 20_000,
  consumerGroup,
  subscriptions: new Map([[topic, '*']]),
  messageListener: { consume },
}).startup();
