// As the scenario `push` of client.py, by a simple consumer: rocketmq-rust HOST:PORT TOPIC. The client for Rust has no push consumer.
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};

const WANTED: [&str; 7] = ["fails once", "1 of a", "2 of a", "3 of a", "delayed", "committed", "checked"];
const INVISIBLE: Duration = Duration::from_secs(20);
const WITHIN: Duration = Duration::from_secs(300);

fn client_of(endpoints: &str) -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(endpoints);
    option.set_enable_tls(false);
    option.set_timeout(Duration::from_secs(60));
    option
}

fn check(_transaction: String, message: MessageView) -> TransactionResolution {
    println!("{{\"checked\": {:?}}}", String::from_utf8_lossy(message.body()));
    if message.body() == b"checked" {
        TransactionResolution::COMMIT
    } else {
        TransactionResolution::UNKNOWN
    }
}

async fn send(producer: &Producer, topic: &str) -> Result<(), ClientError> {
    let message = MessageBuilder::builder().set_topic(topic).set_body(b"fails once".to_vec());
    producer.send(message.build()?).await?;
    for number in 1..=3 {
        let body = format!("{number} of a").into_bytes();
        producer.send(MessageBuilder::fifo_message_builder(topic, body, "a").build()?).await?;
    }
    let due_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64 + 2;
    producer.send(MessageBuilder::delay_message_builder(topic, b"delayed".to_vec(), due_s).build()?).await?;
    for body in ["committed", "rolled back", "checked"] {
        let half = MessageBuilder::transaction_message_builder(topic, body.as_bytes().to_vec()).build()?;
        let transaction = producer.send_transaction_message(half).await?;
        match body {
            "committed" => transaction.commit().await?,
            "rolled back" => transaction.rollback().await?,
            _ => (),
        }
    }
    Ok(())
}

async fn receive_all(consumer: &SimpleConsumer, topic: &str) -> Result<(), ClientError> {
    let mut missing = BTreeSet::from(WANTED);
    let everything = FilterExpression::new(FilterType::Tag, "*");
    while !missing.is_empty() {
        for message in consumer.receive_with(topic, &everything, 16, INVISIBLE).await? {
            let body = String::from_utf8_lossy(message.body()).into_owned();
            println!("{{\"body\": {:?}, \"attempt\": {}}}", body, message.delivery_attempt());
            if body != "fails once" || message.delivery_attempt() > 1 {
                consumer.ack(&message).await?;
                missing.remove(body.as_str());
            }
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), ClientError> {
    let words: Vec<String> = std::env::args().collect();
    let [_, endpoints, topic] = &words[..] else { panic!("call it with HOST:PORT TOPIC") };

    let mut option = SimpleConsumerOption::default();
    option.set_consumer_group("push");
    option.set_topics(vec![topic]);
    let mut consumer = SimpleConsumer::new(option, client_of(endpoints))?;
    consumer.start().await?;
    let mut option = ProducerOption::default();
    option.set_topics(vec![topic]);
    let mut producer = Producer::new_transaction_producer(option, client_of(endpoints), Box::new(check))?;
    producer.start().await?;

    send(&producer, topic).await?;
    tokio::time::timeout(WITHIN, receive_all(&consumer, topic)).await.expect("not all came")?;
    producer.shutdown().await?;
    consumer.shutdown().await
}
