/** The unary calls of the client, by name. */

import type { Client, TrainerReason } from "../src/index.js";
import {
  EndTrialRequest,
  GetNextBatchSizeRequest,
  HeartbeatRequest,
  ImportTrialRequest,
  LookupTrialRequest,
  RegisterJobRequest,
  ReportResultRequest,
} from "../src/stubs/wattwise/v1/batch_size_optimizer.js";
import {
  DeleteJobRequest,
  ReadmitBatchSizeRequest,
  RequestBaselineRequest,
  ResetJobRequest,
  SetBaselineEveryRequest,
  SetBatchSizeBannedRequest,
  SetJobPausedRequest,
  SetJobPolicyRequest,
  SetPinnedBatchSizeRequest,
  SetTrialExcludedRequest,
} from "../src/stubs/wattwise/v1/job_control.js";
import { GetJobRequest, GetTrialRequest } from "../src/stubs/wattwise/v1/job_reader.js";

type UnaryCall = (request: unknown) => Promise<object>;

/** Where the client returns a part of the response, it is put into a response again. */
export function unaryCalls(client: Client): Record<string, UnaryCall> {
  return {
    RegisterJob: on(RegisterJobRequest, (r) => client.registerJob(r.job!)),
    GetNextBatchSize: on(GetNextBatchSizeRequest, (r) => client.getNextBatchSize(r.jobId, r)),
    ReportResult: on(ReportResultRequest, async (r) => ({ decision: await client.reportResult(r.result!) })),
    Heartbeat: on(HeartbeatRequest, async (r) => ({ decision: await client.heartbeat(r.trial!) })),
    EndTrial: on(EndTrialRequest, async (r) => ({
      trial: await client.endTrial(r.trial!, r.endReason as TrainerReason),
    })),
    LookupTrial: on(LookupTrialRequest, async (r) => ({ trial: await client.lookupTrial(r.jobId, r.launchId) })),
    ImportTrial: on(ImportTrialRequest, (r) => client.importTrial(r)),
    GetJob: on(GetJobRequest, (r) => client.getJob(r.jobId)),
    GetTrial: on(GetTrialRequest, (r) => client.getTrial(r.trial!)),
    // The client looks up the time at which the job was registered.
    DeleteJob: on(DeleteJobRequest, (r) => client.deleteJob(r.jobId)),
    ResetJob: on(ResetJobRequest, async (r) => ({ job: await client.resetJob(r.jobId) })),
    SetTrialExcluded: on(SetTrialExcludedRequest, (r) => client.setTrialExcluded(r.trial!, r.excluded!)),
    SetBatchSizeBanned: on(SetBatchSizeBannedRequest, async (r) => ({
      job: await client.setBatchSizeBanned(r.jobId, r.batchSize, r.banned!),
    })),
    SetPinnedBatchSize: on(SetPinnedBatchSizeRequest, async (r) => ({
      job: await client.setPinnedBatchSize(r.jobId, r.batchSize),
    })),
    ReadmitBatchSize: on(ReadmitBatchSizeRequest, async (r) => ({
      job: await client.readmitBatchSize(r.jobId, r.batchSize),
    })),
    SetJobPaused: on(SetJobPausedRequest, async (r) => ({ job: await client.setJobPaused(r.jobId, r.paused!) })),
    RequestBaseline: on(RequestBaselineRequest, async (r) => ({ job: await client.requestBaseline(r.jobId) })),
    SetBaselineEvery: on(SetBaselineEveryRequest, async (r) => ({
      job: await client.setBaselineEvery(r.jobId, r.every!),
    })),
    SetJobPolicy: on(SetJobPolicyRequest, async (r) => ({ job: await client.setJobPolicy(r.jobId, r.policy!) })),
  };
}

/** Completes the request of a call. */
function on<Q>(type: { fromPartial(partial: object): Q }, make: (request: Q) => Promise<object>): UnaryCall {
  return (request) => make(type.fromPartial(request as object));
}
