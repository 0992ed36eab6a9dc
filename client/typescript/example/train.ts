/** A whole training loop against a running server: `node build/js/example/train.js localhost:50051`. */

import { setTimeout as sleep } from "node:timers/promises";
import { Client, EndReason, ServerUnavailableError } from "../src/index.js";

const WATTS = 65;

const client = new Client(process.argv[2] ?? "localhost:50051");
const trial = await client.launch({
  jobIdPrefix: "digits",
  jobId: "digits-typescript",
  batchSizes: [16, 32, 64, 128],
  defaultBatchSize: 64,
  targetMetric: 0.95,
  gpu: { maxPowerWatts: WATTS, numberOfGpus: 1, gpuModel: "none" },
});
console.log(`trial ${trial.id.trialNumber} trains with batch size ${trial.batchSize}`);
process.once("SIGTERM", () => void leave(EndReason.END_REASON_PREEMPTED));

try {
  const begun = performance.now();
  for (let currentEpoch = 1; !trial.stopped.aborted; currentEpoch++) {
    const metric = await trainOneEpoch(currentEpoch, trial.batchSize, trial.stopped);
    // Sums since the trial's start: a report that is missed costs nothing but time.
    const timeSeconds = (performance.now() - begun) / 1000;
    await report({ currentEpoch, timeSeconds, energyJoules: WATTS * timeSeconds, metric });
  }
  console.log(trial.decision?.message);
} catch (error) {
  await leave(EndReason.END_REASON_ERROR);
  throw error;
}
client.close();

/** Stands for the training; a real one hands the signal on, to stop in mid-epoch. */
async function trainOneEpoch(epoch: number, batchSize: number, stopped: AbortSignal): Promise<number> {
  await sleep(1000 / batchSize, undefined, { signal: stopped }).catch(() => {});
  return 1 - 1 / (1 + epoch);
}

/** Reports an epoch; a server that is away does not end the training. */
async function report(measurement: Parameters<typeof trial.report>[0]): Promise<void> {
  try {
    await trial.report(measurement);
  } catch (error) {
    if (!(error instanceof ServerUnavailableError)) {
      throw error;
    }
    console.error(`${error.message}; training goes on`);
  }
}

async function leave(reason: EndReason.END_REASON_ERROR | EndReason.END_REASON_PREEMPTED): Promise<void> {
  await trial.end(reason).catch(() => {});
  client.close();
}
