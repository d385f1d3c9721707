// Notes the orders of a topic in a file, one per line: node totals.js HOST:PORT TOPIC GROUP FILE.
'use strict';

const fs = require('node:fs');
const { ConsumeResult, PushConsumer } = require('rocketmq-client-nodejs');

const [endpoints, topic, consumerGroup, file] = process.argv.slice(2);

function consume(message) {
  fs.appendFileSync(file, `${message.body}\n`); // if it throws, the message comes again
  return ConsumeResult.SUCCESS;
}

new PushConsumer({
  endpoints,
  namespace: '',
  consumerGroup,
  subscriptions: new Map([[topic, '*']]),
  messageListener: { consume },
}).startup().then(() => console.log('started')); // and goes on until it is killed
