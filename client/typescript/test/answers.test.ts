/** Checks of what a server answers. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { checkedDecision, checkedJob, checkedTrial, checkNextPage, MOST_WARNINGS } from "../src/answers.js";
import { InvalidAnswerError } from "../src/index.js";
import { RegisterJobResponse } from "../src/stubs/wattwise/v1/batch_size_optimizer.js";
import { JobSpec } from "../src/stubs/wattwise/v1/job.js";
import { Decision, Trial } from "../src/stubs/wattwise/v1/trial.js";

const HOSTILE = "\u001b[2J";
const warnings = Array.from({ length: 1000 }, () => ({ field: HOSTILE, message: HOSTILE }));

test("the texts of trials and decisions have no control characters, and few warnings are kept", () => {
  const id = { jobId: "job", launchId: "l", trialNumber: 1 };
  const texts = { reason: HOSTILE, decisionMessage: HOSTILE, warnings };
  const trial = checkedTrial("GetNextBatchSize", Trial.fromPartial({ id, batchSize: 16, ...texts }), { jobId: "job" });
  const decision = checkedDecision(Decision.fromPartial({ message: HOSTILE, warnings }));
  for (const found of [trial.warnings, decision.warnings]) {
    assert.equal(found.length, MOST_WARNINGS);
  }
  const all = [...trial.warnings, ...decision.warnings].flatMap(({ field, message }) => [field, message]);
  for (const text of [trial.reason, trial.decisionMessage, decision.message, ...all]) {
    assert.ok(text && !text.includes("\u001b"));
  }
});

test("lists that differ are refused, in another order they are the same", () => {
  const sent = JobSpec.fromPartial({ jobId: "job", batchSizes: [16, 32] });
  const answer = (change: Partial<JobSpec>): RegisterJobResponse =>
    RegisterJobResponse.fromPartial({ job: { spec: { ...sent, ...change } } });
  assert.equal(checkedJob(answer({ batchSizes: [32, 16] }), sent).jobId, "job");
  for (const change of [{ batchSizes: [] }, { batchSizes: [16] }]) {
    assert.throws(() => checkedJob(answer(change), sent), InvalidAnswerError);
  }
});

test("a later server may allow longer leases, and what is no time is refused", () => {
  const sent = JobSpec.fromPartial({ jobId: "job" });
  const answer = (trialLeaseSeconds: number): RegisterJobResponse =>
    RegisterJobResponse.fromPartial({ job: { spec: { ...sent, trialLeaseSeconds } } });
  for (const lease of [0, 1, 3e9]) {
    assert.equal(checkedJob(answer(lease), sent).trialLeaseSeconds, lease);
  }
  for (const lease of [-1, 0.1, Number.NaN, Number.POSITIVE_INFINITY]) {
    assert.throws(() => checkedJob(answer(lease), sent), InvalidAnswerError);
  }
});

test("pages that may never end are refused", () => {
  const seen = new Set([""]);
  checkNextPage("ListJobs", 1, "a", seen);
  checkNextPage("ListJobs", 0, "", seen);
  for (const [items, token] of [
    [0, "b"],
    [1, "a"],
    [1, "x".repeat(10_000)],
  ] as const) {
    assert.throws(() => {
      checkNextPage("ListJobs", items, token, seen);
    }, InvalidAnswerError);
  }
  assert.throws(() => {
    for (let page = 0; page < 200_000; page++) {
      checkNextPage("ListJobs", 1, String(page), seen);
    }
  }, InvalidAnswerError);
});
