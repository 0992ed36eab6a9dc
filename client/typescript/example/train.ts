/**
 * One launch of a recurring training job, with epochs that only pretend to train:
 *
 *     build/example [ADDRESS [SECONDS PER EPOCH [SECONDS OF LEASE]]]
 *
 * Exits with 0 when the model reached its target and with 3 when the server stopped the trial without it.
 */

import { setTimeout as sleep } from "node:timers/promises";
import { Client, type Decision, EndReason, ServerUnavailableError, type TrialSession } from "../src/index.js";

const [address = "localhost:50051", pace = "0", lease = "300"] = process.argv.slice(2);
const interrupted = new AbortController();
process.once("SIGTERM", () => interrupted.abort());
process.once("SIGINT", () => interrupted.abort());

try {
  process.exitCode = await launch(new Client(address));
} catch (error) {
  console.error((error as Error).message);
  process.exitCode = 1;
}

async function launch(client: Client): Promise<number> {
  try {
    const trial = await client.launch({
      jobIdPrefix: "pretend",
      jobId: "pretend-nightly",
      batchSizes: [16, 32, 64, 128],
      defaultBatchSize: 32,
      targetMetric: 0.9,
      trialLeaseSeconds: Number(lease),
      gpu: { maxPowerWatts: 300, numberOfGpus: 1, gpuModel: "Pretended GPU" },
    });
    console.log(`trial ${trial.id.trialNumber} trains with batch size ${trial.batchSize}`);
    return await train(trial);
  } finally {
    client.close();
  }
}

async function train(trial: TrialSession): Promise<number> {
  // What is true if training ends without a word from the server.
  let reason: EndReason.END_REASON_ERROR | EndReason.END_REASON_PREEMPTED | EndReason.END_REASON_COMPLETED;
  reason = EndReason.END_REASON_ERROR;
  try {
    let [timeSeconds, energyJoules] = [0, 0];
    for (let currentEpoch = 1; ; currentEpoch++) {
      await sleep(Number(pace) * 1000, undefined, {
        signal: AbortSignal.any([trial.stopped, interrupted.signal]),
      }).catch(() => {});
      if (interrupted.signal.aborted) {
        reason = EndReason.END_REASON_PREEMPTED;
        return 1;
      }
      const [metric, seconds, joules] = epochOf(trial.batchSize, currentEpoch);
      [timeSeconds, energyJoules] = [timeSeconds + seconds, energyJoules + joules];
      const decision = await report(trial, { currentEpoch, timeSeconds, energyJoules, metric });
      if (decision?.stopTrain) {
        console.log(decision.message);
        reason = EndReason.END_REASON_COMPLETED;
        return decision.targetReached ? 0 : 3;
      }
    }
  } finally {
    await trial.end(reason).catch(() => {});
  }
}

/** Reports an epoch; a server that is away does not end the training. */
async function report(
  trial: TrialSession,
  measurement: Parameters<TrialSession["report"]>[0],
): Promise<Decision | undefined> {
  try {
    return await trial.report(measurement);
  } catch (error) {
    if (!(error instanceof ServerUnavailableError)) {
      throw error;
    }
    console.error(`training goes on without the server: ${error.message}`);
    return undefined;
  }
}

/** Pretends: large batches are quick and learn little; every epoch draws 250 W. */
function epochOf(batchSize: number, epoch: number): [number, number, number] {
  const seconds = 20 + 2000 / batchSize;
  return [1 - Math.exp((-epoch * 4) / Math.sqrt(batchSize)), seconds, 250 * seconds];
}
