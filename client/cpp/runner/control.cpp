// The steps that import trials and control a job.
#include "fields.hpp"
#include "steps.hpp"

template <class Request>
Request Steps::for_job(const YAML::Node& args) const {
  Request request;
  request.set_job_id(spec_.job_id());
  fill(request, args);
  return request;
}

Answer Steps::import_trial(const YAML::Node& args) {
  auto request = for_job<v1::ImportTrialRequest>(renamed(args, {{"trial", ""}, {"measurements", ""}}));
  for (const auto& line : args["measurements"]) {
    v1::Measurement& measurement = *request.add_measurements();
    measurement.set_epoch(line[0].as<int>());
    measurement.set_time_seconds(1);
    measurement.set_energy_joules(line[1].as<double>());
    measurement.set_metric(line[2].as<double>());
  }
  const auto response = client_.import_trial(request);
  trials_[text(args, "trial")] = response.trial().id();
  return answer(response);
}

Answer Steps::reset(const YAML::Node& args) {
  return answer(client_.reset_job(for_job<v1::ResetJobRequest>(args).job_id()));
}

Answer Steps::exclude(const YAML::Node& args) {
  check_keys(args, {"trial", "excluded"});
  return answer(client_.set_trial_excluded(trial(text(args, "trial")), args["excluded"].as<bool>()));
}

Answer Steps::ban(const YAML::Node& args) {
  const auto request = for_job<v1::SetBatchSizeBannedRequest>(args);
  return answer(client_.set_batch_size_banned(request.job_id(), request.batch_size(), request.banned()));
}

Answer Steps::pin(const YAML::Node& args) {
  const auto request = for_job<v1::SetPinnedBatchSizeRequest>(args);
  std::optional<int> batch_size;
  if (request.has_batch_size()) batch_size = request.batch_size();
  return answer(client_.set_pinned_batch_size(request.job_id(), batch_size));
}

Answer Steps::readmit(const YAML::Node& args) {
  const auto request = for_job<v1::ReadmitBatchSizeRequest>(args);
  return answer(client_.readmit_batch_size(request.job_id(), request.batch_size()));
}

Answer Steps::pause(const YAML::Node& args) {
  const auto request = for_job<v1::SetJobPausedRequest>(args);
  return answer(client_.set_job_paused(request.job_id(), request.paused()));
}

Answer Steps::baseline(const YAML::Node& args) {
  return answer(client_.request_baseline(for_job<v1::RequestBaselineRequest>(args).job_id()));
}

Answer Steps::baseline_every(const YAML::Node& args) {
  const auto request = for_job<v1::SetBaselineEveryRequest>(args);
  return answer(client_.set_baseline_every(request.job_id(), request.every()));
}

Answer Steps::set_policy(const YAML::Node& args) {
  const auto request = for_job<v1::SetJobPolicyRequest>(args);
  return answer(client_.set_job_policy(request.job_id(), request.policy()));
}
