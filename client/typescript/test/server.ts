/** A real server in its own process on a free loopback port. */

import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { Direction, type JobOptions, type JobSpec, PolicySpec, TrialId } from "../src/index.js";

const ROOT = resolve(import.meta.dirname, "../../../../..");
const PYTHON = join(ROOT, ".venv/bin/python");

export class Server {
  readonly folder = mkdtempSync(join(tmpdir(), "wattwise-"));
  address = "127.0.0.1:0";
  #process: ChildProcess | undefined;

  /** Starts the server; a restart uses the same port and database. */
  async start(...options: string[]): Promise<string> {
    const database = `sqlite:///${join(this.folder, "wattwise.db")}`;
    const command = ["-m", "wattwise_server", "--address", this.address, "--database", database, ...options];
    this.#process = spawn(PYTHON, command, { stdio: ["ignore", "pipe", "ignore"] });
    for await (const line of createInterface(this.#process.stdout!)) {
      this.address = /^wattwise listens on (\S+)$/.exec(line)?.[1] ?? this.address;
      return this.address;
    }
    throw new Error("the server did not start");
  }

  /** Kills the server with SIGKILL. */
  async kill(): Promise<void> {
    if (this.#process?.exitCode === null && this.#process.signalCode === null) {
      this.#process.kill("SIGKILL");
      await once(this.#process, "exit");
    }
  }

  /** Kills the server and deletes its folder. */
  async close(): Promise<void> {
    await this.kill();
    rmSync(this.folder, { recursive: true });
  }

  /** The path of a file in its folder. */
  file(name: string): string {
    return join(this.folder, name);
  }

  /** Runs Python in the repository. */
  python(code: string, ...values: string[]): string {
    return execFileSync(PYTHON, ["-c", code, ...values], { cwd: ROOT, encoding: "utf8" }).trim();
  }

  /** Creates a token with a role in the file `server.tokens`. */
  token(role: string): string {
    const command = ["token", "create", "--tokens", this.file("server.tokens"), "--role", role, "--prefix", "test-"];
    return execFileSync(join(ROOT, ".venv/bin/wattwise"), command, { encoding: "utf8", stdio: "pipe" }).trim();
  }

  /** Creates the authority `ca.pem`, its certificates `server.crt` (for hosts) and `client.crt`, and their keys. */
  certificates(...hosts: string[]): void {
    const code = `import sys, pathlib; from tests.credentials import Authority
ca = Authority(pathlib.Path(sys.argv[1])); ca.issue("server", *sys.argv[2:]); ca.issue("client"); Authority(pathlib.Path(sys.argv[1]), "other")`;
    this.python(code, this.folder, ...hosts);
  }
}

let jobs = 0;

/** A job with a unique id, whose cost is its energy. */
export function job(fields: Partial<JobSpec> = {}): JobOptions & { jobId: string } {
  return {
    jobIdPrefix: "test-",
    batchSizes: [8, 16, 32, 64],
    defaultBatchSize: 16,
    etaKnob: 1,
    target: { value: 0.9, direction: Direction.DIRECTION_HIGHER_IS_BETTER },
    maxEpochs: 10,
    policy: PolicySpec.fromPartial({ policy: { $case: "pruningGts", value: {} } }),
    gpus: [{ gpuModel: "Test GPU", count: 1, maxPowerWattsPerGpu: 100 }],
    ...fields,
    jobId: `test-${process.pid}-${jobs++}`,
  };
}

/** The report of an epoch with this cost. */
export function epoch(number: number, cost: number, metric: number) {
  return { epoch: number, timeSeconds: number, energyJoules: cost, metric };
}

/** The id of a trial that does not exist. */
export function ghost(jobId: string): TrialId {
  return TrialId.fromPartial({ jobId, launchId: "nobody", trialNumber: 9 });
}

/** The policy with one pruning round. */
export function oneRound(): PolicySpec {
  return PolicySpec.fromPartial({ policy: { $case: "pruningGts", value: { numPruningRounds: 1 } } });
}

/** All items of an iteration. */
export async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) {
    found.push(item);
  }
  return found;
}
