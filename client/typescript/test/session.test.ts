/** A trial's line to the server: decisions, pushed stops, heartbeats, and what an outage does to them. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import {
  Client,
  type Decision,
  EndReason,
  InvalidResultError,
  TrialNotFoundError,
  TrialStatus,
  type TrialSession,
} from "../src/index.js";
import { epoch, ghost, job, Server } from "./server.js";

const server = new Server();
let client: Client;

before(async () => {
  client = new Client(await server.start());
});

after(async () => {
  client.close();
  await server.close();
});

async function statusOf(trial: TrialSession): Promise<TrialStatus | undefined> {
  return (await client.getTrial(trial.id)).trial?.status;
}

async function until(fact: () => Promise<boolean>): Promise<void> {
  for (const deadline = Date.now() + 20_000; !(await fact()); await sleep(20)) {
    assert(Date.now() < deadline, "what was waited for did not happen");
  }
}

test("reports are answered in their order, and the last decision stays", async () => {
  const trial = await client.launch(job());
  assert.equal(trial.batchSize, 16);
  const [first, second] = await Promise.all([trial.report(epoch(1, 10, 0.5)), trial.report(epoch(2, 20, 0.95))]);
  assert.deepEqual([first.cost, first.stopTrain, second.cost, second.stopTrain], [10, false, 20, true]);
  assert.equal(trial.stopped.aborted, true);
  assert.equal((await trial.report(epoch(3, 30, 0.1))).cost, 20);
});

test("a stop is pushed in mid-epoch, with its decision", async () => {
  const spec = job();
  const [slow, fast] = [await client.launch(spec), await client.launch(spec)];
  await slow.report(epoch(1, 50, 0.5));
  const stopped = once(slow.stopped, "abort");
  await fast.report(epoch(1, 20, 0.95));
  await stopped;
  assert.match((slow.stopped.reason as Decision).message, /cost bound exceeded/);
  assert.equal(slow.decision?.costBound, 40);
});

test("numbers that make no sense are refused, and training goes on", async () => {
  const trial = await client.launch(job());
  await trial.report(epoch(2, 20, 0.5));
  await assert.rejects(trial.report(epoch(1, 10, 0.5)), InvalidResultError);
  assert.equal((await trial.report(epoch(3, 30, 0.95))).converged, true);
});

test("heartbeats keep a trial for several leases, and nobody keeps one that was closed", async () => {
  const spec = job({ trialLeaseSeconds: 1 });
  const [kept, silent] = [await client.launch(spec), await client.launch(spec)];
  silent.close();
  await until(async () => (await statusOf(silent)) === TrialStatus.TRIAL_STATUS_FAILED);
  const begun = (await client.getTrial(kept.id)).trial!;
  await until(async () => (await client.getTrial(kept.id)).trial!.leaseExpireTime! > begun.leaseExpireTime!);
  assert.equal(await statusOf(kept), TrialStatus.TRIAL_STATUS_DISPATCHED);
  await kept.end(EndReason.END_REASON_COMPLETED);
});

test("a trial that its trainer ends is over for its reason", async () => {
  const trial = await client.launch(job());
  const ended = await trial.end(EndReason.END_REASON_OUT_OF_MEMORY);
  assert.equal(ended.endReason, EndReason.END_REASON_OUT_OF_MEMORY);
});

test("a trial that was never dispatched is an error of its report", async () => {
  const spec = job();
  await client.registerJob(spec);
  const trial = client.follow(ghost(spec.jobId), 300);
  await assert.rejects(trial.report(epoch(1, 10, 0.5)), TrialNotFoundError);
  trial.close();
});

test("a report rides out a server that is killed and started again, and its pushes come again", async () => {
  const spec = job({ trialLeaseSeconds: 1 });
  const [slow, fast] = [await client.launch(spec), await client.launch(spec)];
  await slow.report(epoch(1, 50, 0.5));
  await server.kill();
  const answer = slow.report(epoch(2, 60, 0.5));
  await server.start();
  assert.equal((await answer).cost, 60);
  const stopped = once(slow.stopped, "abort");
  await fast.report(epoch(1, 20, 0.95));
  await stopped;
});

test("a server that takes no more streams is spoken to by single calls", async () => {
  const few = new Server();
  const crowd = new Client(await few.start("--max-streams", "1"));
  const spec = job({ trialLeaseSeconds: 1 });
  const [first, second] = [await crowd.launch(spec), await crowd.launch(spec)];
  assert.equal((await first.report(epoch(1, 10, 0.5))).cost, 10);
  assert.equal((await second.report(epoch(1, 50, 0.5))).cost, 50);
  await first.report(epoch(2, 20, 0.95));
  // Without a report of its own: a heartbeat tells it, or the stream that has become free.
  await once(second.stopped, "abort");
  crowd.close();
  await few.close();
});
