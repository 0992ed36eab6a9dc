/** One StreamResults call: sends reports and heartbeats, receives decisions. */

import type { ClientDuplexStream, ServiceError } from "@grpc/grpc-js";
import { checkedDecision } from "./answers.js";
import { fromServiceError, InvalidRequestError, InvalidResultError, WattwiseError } from "./errors.js";
import { ErrorReason } from "./stubs/wattwise/v1/error_reason.js";
import type { StreamResultsRequest, StreamResultsResponse } from "./stubs/wattwise/v1/batch_size_optimizer.js";
import { type Decision, Measurement, type TrainingResult, type TrialId } from "./stubs/wattwise/v1/trial.js";

const NUMBERS = ["epoch", "timeSeconds", "metric"] as const;
const OPTIONAL = ["energyJoules"] as const;

const KNOWN = new Set(Object.keys(Measurement.fromPartial({})));

/** Throws if a required number is missing, or a name is unknown, which would not be sent. Only a metric may be NaN. */
export function checkNumbers(report: Partial<Measurement>, where: string, imported = false): void {
  const missing = [...NUMBERS, ...OPTIONAL.filter((name) => report[name] !== undefined)].filter((name) => {
    const value: unknown = report[name];
    return typeof value !== "number" || (name !== "metric" && Number.isNaN(value));
  });
  const unknown = Object.keys(report).filter((name) => !KNOWN.has(name));
  if (missing.length > 0 || unknown.length > 0) {
    const violations = [
      ...missing.map((name) => ({
        field: `${where}.${name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)}`,
        description: `is ${String(report[name])}, not a number`,
      })),
      ...unknown.map((name) => ({ field: `${where}.${name}`, description: "is unknown" })),
    ];
    const faults = violations.map(({ field, description }) => `${field} ${description}`).join("; ");
    const message = `${faults}: pass numbers under the names of Measurement, and NaN as the metric if training has diverged`;
    const refusal = { status: "INVALID_ARGUMENT", violations } as const;
    if (imported) {
      throw new InvalidRequestError(message, { ...refusal, reason: ErrorReason.ERROR_REASON_INVALID_REQUEST });
    }
    throw new InvalidResultError(message, { ...refusal, reason: ErrorReason.ERROR_REASON_INVALID_RESULT });
  }
}

/** The decisions that wait for the reader before the server must wait, too. */
const MOST_WAITING = 100;

/** A trial's open stream. It buffers decisions for one reader. */
export class ResultStream implements AsyncIterable<Decision> {
  readonly #call: ClientDuplexStream<StreamResultsRequest, StreamResultsResponse>;
  readonly #decisions: Decision[] = [];
  #ended = false;
  #failure: WattwiseError | undefined;
  #wake: () => void = () => {};

  /** Use `Client.streamResults`. */
  constructor(call: ClientDuplexStream<StreamResultsRequest, StreamResultsResponse>, address: string) {
    this.#call = call;
    // Events, because the call's iterator misses an error that occurs before it is read.
    call.on("data", ({ decision }: StreamResultsResponse) => {
      try {
        this.#decisions.push(checkedDecision(decision));
      } catch (error) {
        // Thrown here, it would end the process.
        this.#failure = error as WattwiseError;
        call.cancel();
      }
      if (this.#decisions.length >= MOST_WAITING) {
        call.pause();
      }
      this.#wake();
    });
    call.on("error", (error: ServiceError) => {
      this.#failure ??= fromServiceError(error, address);
    });
    // Emitted after all data and after an error.
    call.on("end", () => {
      this.#ended = true;
      this.#wake();
    });
  }

  /**
   * Sends the report of an epoch, which is answered by a decision. Does nothing if the stream has ended.
   *
   * @throws InvalidResultError if one of its numbers is missing.
   */
  report(result: TrainingResult): void {
    checkNumbers(result.measurement ?? {}, "result.measurement");
    this.#send({ event: { $case: "result", value: result } });
  }

  /** Renews the trial's lease. There is no answer. */
  heartbeat(trial: TrialId): void {
    this.#send({ event: { $case: "heartbeat", value: { trial } } });
  }

  /**
   * Waits for the next decision: the answer to a report, or a stop that the server pushed.
   *
   * @returns undefined once the server has ended the stream.
   * @throws WattwiseError if the stream ended with an error.
   */
  async next(): Promise<Decision | undefined> {
    while (this.#decisions.length === 0 && !this.#ended) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    const decision = this.#decisions.shift();
    this.#call.resume();
    if (decision === undefined && this.#failure !== undefined) {
      throw this.#failure;
    }
    return decision;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Decision> {
    for (let decision = await this.next(); decision !== undefined; decision = await this.next()) {
      yield decision;
    }
  }

  /** Closes the sending side: the server answers what it has received and ends the stream. */
  close(): void {
    this.#call.end();
  }

  /** Cancels the call. */
  cancel(): void {
    this.#call.cancel();
  }

  #send(request: StreamResultsRequest): void {
    if (!this.#ended && this.#call.writable) {
      this.#call.write(request);
    }
  }
}
