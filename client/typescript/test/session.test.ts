/** A trial's session: decisions, pushed stops, heartbeats, outages. */

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

/** A trial of batch size 8, and one of 16, which is the best known batch size once it has reached the target. */
async function explorationAndConcurrent(
  of: Client,
  spec: ReturnType<typeof job>,
): Promise<[TrialSession, TrialSession]> {
  const first = await of.launch(spec);
  await first.report(epoch(1, 100, 0.95));
  const [slow, fast] = [await of.launch(spec), await of.launch(spec)];
  assert.deepEqual([slow.batchSize, fast.batchSize], [8, 16]);
  return [slow, fast];
}

async function until(condition: () => Promise<boolean>): Promise<void> {
  for (const deadline = Date.now() + 20_000; !(await condition()); await sleep(20)) {
    assert(Date.now() < deadline, "timeout");
  }
}

test("reports are answered in order, and a stop is final", async () => {
  const trial = await client.launch(job());
  assert.equal(trial.batchSize, 16);
  const [first, second] = await Promise.all([trial.report(epoch(1, 10, 0.5)), trial.report(epoch(2, 20, 0.95))]);
  assert.deepEqual([first.cost, first.stopTrain, second.cost, second.stopTrain], [10, false, 20, true]);
  assert.equal(trial.stopped.aborted, true);
  assert.equal((await trial.report(epoch(3, 30, 0.1))).cost, 20);
});

test("a stop is pushed in the middle of an epoch, with its decision", async () => {
  const [slow, fast] = await explorationAndConcurrent(client, job());
  await slow.report(epoch(1, 50, 0.5));
  const stopped = once(slow.stopped, "abort");
  await fast.report(epoch(1, 20, 0.95));
  await stopped;
  assert.match((slow.stopped.reason as Decision).message, /cost bound exceeded/);
  assert.equal(slow.decision?.costBound, 40);
});

test("invalid numbers are refused, and training continues", async () => {
  const trial = await client.launch(job());
  await trial.report(epoch(2, 20, 0.5));
  await assert.rejects(trial.report(epoch(1, 10, 0.5)), InvalidResultError);
  assert.equal((await trial.report(epoch(3, 30, 0.95))).converged, true);
});

test("heartbeats renew the lease, and a closed session sends none", async () => {
  const spec = job({ trialLeaseSeconds: 1 });
  const [open, closed] = [await client.launch(spec), await client.launch(spec)];
  closed.close();
  await until(async () => (await statusOf(closed)) === TrialStatus.TRIAL_STATUS_FAILED);
  const begun = (await client.getTrial(open.id)).trial!;
  await until(async () => (await client.getTrial(open.id)).trial!.leaseExpireTime! > begun.leaseExpireTime!);
  assert.equal(await statusOf(open), TrialStatus.TRIAL_STATUS_DISPATCHED);
  await open.end(EndReason.END_REASON_COMPLETED);
});

test("a trial ended by its trainer has the trainer's reason", async () => {
  const trial = await client.launch(job());
  const ended = await trial.end(EndReason.END_REASON_OUT_OF_MEMORY);
  assert.equal(ended.endReason, EndReason.END_REASON_OUT_OF_MEMORY);
});

test("a report of an unknown trial is an error", async () => {
  const spec = job();
  await client.registerJob(spec);
  const trial = client.openSession(ghost(spec.jobId), 300);
  await assert.rejects(trial.report(epoch(1, 10, 0.5)), TrialNotFoundError);
  trial.close();
});

test("a report and pushed stops survive a crash and restart of the server", async () => {
  const [slow, fast] = await explorationAndConcurrent(client, job({ trialLeaseSeconds: 1 }));
  await slow.report(epoch(1, 50, 0.5));
  await server.kill();
  const answer = slow.report(epoch(2, 60, 0.5));
  await server.start();
  assert.equal((await answer).cost, 60);
  const stopped = once(slow.stopped, "abort");
  await fast.report(epoch(1, 20, 0.95));
  await stopped;
});

test("a session without a stream uses unary calls", async () => {
  const few = new Server();
  const busy = new Client(await few.start("--max-streams", "1"));
  const [second, first] = await explorationAndConcurrent(busy, job({ trialLeaseSeconds: 1 }));
  assert.equal((await first.report(epoch(1, 10, 0.5))).cost, 10);
  assert.equal((await second.report(epoch(1, 50, 0.5))).cost, 50);
  // It does not report: the stop comes by a heartbeat, or by the stream that has become free.
  const stopped = once(second.stopped, "abort");
  await first.report(epoch(2, 20, 0.95));
  await stopped;
  busy.close();
  await few.close();
});
