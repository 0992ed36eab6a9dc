/** The Wattwise client for Node.js: learns the batch size that trains a recurring deep-learning job at the lowest cost. */

export type { CallOptions } from "./backoff.js";
export { Client, type ClientOptions, type JobOptions, type LaunchOptions, type TrialToImport } from "./client.js";
export { type CredentialOptions, Credentials } from "./credentials.js";
export * from "./errors.js";
export { ResultStream } from "./results.js";
export { type EpochReport, type TrainerReason, type TrialCalls, TrialSession } from "./session.js";
export * from "./stubs/wattwise/v1/batch_size_optimizer.js";
export { ErrorReason } from "./stubs/wattwise/v1/error_reason.js";
export {
  Arm,
  BatchSizeState,
  BatchSizeStatus,
  ChangedQuantity,
  DetectedChange,
  Direction,
  EarlyStopping,
  GpuGroup,
  GtsSpec,
  Job,
  JobDetails,
  JobSpec,
  KnowledgeGradientSpec,
  PolicyDetails,
  PolicySpec,
  PolicyState,
  PowerLimit,
  PruningGtsSpec,
  PruningGtsStage,
  Target,
} from "./stubs/wattwise/v1/job.js";
export * from "./stubs/wattwise/v1/job_control.js";
export * from "./stubs/wattwise/v1/job_reader.js";
export * from "./stubs/wattwise/v1/server_info.js";
export {
  ComputedUsage,
  Decision,
  EndReason,
  EnergyQuality,
  Measurement,
  Monitor,
  PowerSetting,
  PruningGtsRole,
  PruningGtsTrial,
  TrainingResult,
  Trial,
  TrialId,
  TrialStatus,
  TrialOrigin,
  TrialWarning,
  WarningReason,
} from "./stubs/wattwise/v1/trial.js";
