#include "steps.hpp"

#include "fields.hpp"

namespace {

constexpr std::chrono::seconds kTimeout{10};
constexpr std::chrono::milliseconds kPause{50};

v1::JobSpec default_job() {
  v1::JobSpec spec;
  spec.set_job_id_prefix("scenario");
  for (const int size : {8, 16, 32, 64}) spec.add_batch_sizes(size);
  spec.set_default_batch_size(16);
  spec.set_eta_knob(1);
  spec.mutable_target()->set_value(0.9);
  spec.mutable_target()->set_direction(v1::DIRECTION_HIGHER_IS_BETTER);
  spec.set_max_epochs(10);
  spec.mutable_policy()->mutable_pruning_gts()->set_seed(1);
  auto& gpu = *spec.add_gpus();
  gpu.set_gpu_model("Test GPU");
  gpu.set_count(1);
  gpu.set_max_power_watts_per_gpu(100);
  return spec;
}

v1::StreamResultsRequest heartbeat_request(const v1::TrialId& trial) {
  v1::StreamResultsRequest request;
  *request.mutable_heartbeat()->mutable_trial() = trial;
  return request;
}

}  // namespace

YAML::Node renamed(const YAML::Node& args, const std::map<std::string, std::string>& names) {
  YAML::Node fields(YAML::NodeType::Map);
  for (const auto& entry : args) {
    const auto key = entry.first.as<std::string>();
    const auto found = names.find(key);
    const std::string name = found == names.end() ? key : found->second;
    if (!name.empty()) fields[name] = entry.second;
  }
  return fields;
}

Steps::Steps(wattwise::Client& client, const YAML::Node& job, std::string suffix)
    : client_(client), spec_(default_job()) {
  if (job) fill(spec_, job);
  if (spec_.job_id().empty()) spec_.set_job_id(spec_.job_id_prefix() + "-" + std::move(suffix));
}

const std::map<std::string, Steps::Step>& Steps::table() {
  static const std::map<std::string, Step> steps = {
      {"next", &Steps::next},         {"report", &Steps::report},         {"heartbeat", &Steps::heartbeat},
      {"end", &Steps::end},           {"register", &Steps::register_job}, {"get", &Steps::get},
      {"job", &Steps::get_job},       {"delete", &Steps::delete_job},     {"invent", &Steps::invent},
      {"open", &Steps::open},         {"send", &Steps::send},             {"expect", &Steps::expect},
      {"close", &Steps::close},       {"import", &Steps::import_trial},   {"reset", &Steps::reset},
      {"exclude", &Steps::exclude},   {"ban", &Steps::ban}, {"pin", &Steps::pin}, {"readmit", &Steps::readmit},
      {"pause", &Steps::pause},       {"baseline", &Steps::baseline},     {"set_policy", &Steps::set_policy},
      {"baseline_every", &Steps::baseline_every},
      {"lookup", &Steps::lookup},
      {"details", &Steps::get_details},
  };
  return steps;
}

bool Steps::known(const std::string& name) { return name == "until" || table().count(name) > 0; }

Answer Steps::take(const std::string& name, const YAML::Node& args, const YAML::Node& then) {
  return name == "until" ? until(args, then) : (this->*table().at(name))(args);
}

Answer Steps::register_job(const YAML::Node& changed) {
  v1::JobSpec spec = spec_;
  fill(spec, changed);
  return answer(client_.register_job(spec));
}

Answer Steps::next(const YAML::Node& args) {
  check_keys(args, {"trial", "launch_id", "job_id", "resume"});
  const std::string launch_id = args["launch_id"] ? text(args, "launch_id") : wattwise::new_id();
  const std::string job_id = text(args, "job_id", spec_.job_id());
  const bool resume = args["resume"] && args["resume"].as<bool>();
  const auto response =
      resume ? client_.resume_trial(job_id, launch_id) : client_.get_next_batch_size(job_id, launch_id);
  const bool imported = response.trial().origin() == v1::TRIAL_ORIGIN_IMPORTED;
  if (response.trial().reason().empty() && !imported) throw Mismatch("has no reason");
  trials_[text(args, "trial")] = response.trial().id();
  return answer(response.trial());
}

Answer Steps::report(const YAML::Node& args) { return answer(client_.report_result(result(args))); }

v1::TrainingResult Steps::result(const YAML::Node& args) const {
  v1::TrainingResult result;
  v1::Measurement& measurement = *result.mutable_measurement();
  measurement.set_time_seconds(1);
  fill(measurement, renamed(args, {{"cost", "energy_joules"}, {"time", "time_seconds"}, {"trial", ""}, {"monitor", ""}}));
  if (args["monitor"]) fill(*result.mutable_monitor(), args["monitor"]);
  *result.mutable_trial() = trial(text(args, "trial"));
  return result;
}

Answer Steps::heartbeat(const YAML::Node& args) {
  check_keys(args, {"trial"});
  return answer(client_.heartbeat(trial(text(args, "trial"))));
}

Answer Steps::end(const YAML::Node& args) {
  check_keys(args, {"trial", "reason"});
  v1::EndReason reason;
  if (!v1::EndReason_Parse(text(args, "reason"), &reason)) {
    throw Mismatch(text(args, "reason") + " is not a value of EndReason");
  }
  return answer(client_.end_trial(trial(text(args, "trial")), reason));
}

Answer Steps::get(const YAML::Node& args) {
  check_keys(args, {"trial"});
  v1::GetTrialRequest request;
  *request.mutable_trial() = trial(text(args, "trial"));
  return answer(client_.call(&v1::JobReader::Stub::GetTrial, request).trial());
}

Answer Steps::lookup(const YAML::Node& args) {
  check_keys(args, {"trial", "launch_id", "job_id"});
  v1::Trial found = client_.lookup_trial(text(args, "job_id", spec_.job_id()), text(args, "launch_id"));
  trials_[text(args, "trial")] = found.id();
  return answer(std::move(found));
}

Answer Steps::get_job(const YAML::Node& args) {
  check_keys(args, {"job_id"});
  return answer(client_.get_job(text(args, "job_id", spec_.job_id())).job());
}

Answer Steps::get_details(const YAML::Node& args) {
  check_keys(args, {"job_id"});
  return answer(client_.get_job(text(args, "job_id", spec_.job_id())).details());
}

Answer Steps::delete_job(const YAML::Node& args) {
  check_keys(args, {});
  v1::DeleteJobRequest request;
  request.set_job_id(spec_.job_id());
  *request.mutable_create_time() = client_.get_job(spec_.job_id()).job().create_time();
  return answer(client_.call(&v1::JobControl::Stub::DeleteJob, request).job());
}

Answer Steps::invent(const YAML::Node& args) {
  v1::TrialId id = trial(text(args, "like"));
  fill(id, renamed(args, {{"trial", ""}, {"like", ""}}));
  trials_[text(args, "trial")] = id;
  return nullptr;
}

Answer Steps::until(const YAML::Node& args, const YAML::Node& then) {
  check_keys(args, {"trial", "heartbeat"});
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  YAML::Node polled;
  polled["trial"] = args["trial"];
  for (;; std::this_thread::sleep_for(kPause)) {
    if (const auto name = text(args, "heartbeat"); !name.empty()) client_.heartbeat(trial(name));
    Answer current = get(polled);
    try {
      check(*current, then);
      return current;
    } catch (const Mismatch&) {
      if (std::chrono::steady_clock::now() > deadline) throw;
    }
  }
}

Answer Steps::open(const YAML::Node& args) {
  check_keys(args, {"trial"});
  auto opened = std::make_unique<Stream>(client_);
  opened->send(heartbeat_request(trial(text(args, "trial"))));
  streams_[text(args, "trial")] = std::move(opened);
  return nullptr;
}

Answer Steps::send(const YAML::Node& args) {
  if (args["epoch"]) {
    v1::StreamResultsRequest request;
    *request.mutable_result() = result(args);
    stream(args).send(request);
  } else {
    check_keys(args, {"trial"});
    stream(args).send(heartbeat_request(trial(text(args, "trial"))));
  }
  return nullptr;
}

Answer Steps::expect(const YAML::Node& args) {
  check_keys(args, {"trial"});
  auto decision = stream(args).next();
  if (!decision) throw Mismatch("the stream ended");
  return answer(std::move(*decision));
}

Answer Steps::close(const YAML::Node& args) {
  check_keys(args, {"trial"});
  stream(args).close();
  if (const auto decision = stream(args).next()) {
    throw Mismatch("an unexpected decision arrived: " + decision->message());
  }
  return nullptr;
}

const v1::TrialId& Steps::trial(const std::string& name) const {
  const auto found = trials_.find(name);
  if (found == trials_.end()) throw Mismatch("unknown trial '" + name + "'");
  return found->second;
}

Stream& Steps::stream(const YAML::Node& args) const {
  const auto found = streams_.find(text(args, "trial"));
  if (found == streams_.end()) throw Mismatch("no open stream for trial '" + text(args, "trial") + "'");
  return *found->second;
}
