#include "fields.hpp"
#include "replay.hpp"

namespace {

constexpr std::chrono::seconds kLongestWait{10};
constexpr std::chrono::milliseconds kAskEvery{50};

template <class Message>
Answer answer(Message message) {
  return std::make_unique<Message>(std::move(message));
}

// The fields of a step but for some, by the names of the message.
YAML::Node renamed(const YAML::Node& given, const std::map<std::string, std::string>& names) {
  YAML::Node fields(YAML::NodeType::Map);
  for (const auto& entry : given) {
    const auto found = names.find(entry.first.as<std::string>());
    const std::string name = found == names.end() ? entry.first.as<std::string>() : found->second;
    if (!name.empty()) fields[name] = entry.second;
  }
  return fields;
}

}  // namespace

const std::map<std::string, Replay::Step>& Replay::steps() {
  static const std::map<std::string, Step> known = {
      {"next", &Replay::next},         {"report", &Replay::report},         {"heartbeat", &Replay::heartbeat},
      {"end", &Replay::end},           {"register", &Replay::register_job}, {"get", &Replay::get},
      {"job", &Replay::get_job},       {"delete", &Replay::delete_job},     {"invent", &Replay::invent},
      {"open", &Replay::open},         {"send", &Replay::send},             {"expect", &Replay::expect},
      {"close", &Replay::close},
  };
  return known;
}

Answer Replay::next(const YAML::Node& given) {
  only(given, {"trial", "request_id", "job_id", "resume"});
  const std::string request_id = given["request_id"] ? text(given, "request_id") : wattwise::new_request_id();
  const std::string job_id = text(given, "job_id", spec_.job_id());
  const bool resume = given["resume"] && given["resume"].as<bool>();
  const auto response =
      resume ? client_.resume_trial(job_id, request_id) : client_.next_batch_size(job_id, request_id);
  if (response.reason().empty()) throw Mismatch("no reason is given");
  trials_[text(given, "trial")] = response.trial().id();
  return answer(response.trial());
}

Answer Replay::report(const YAML::Node& given) { return answer(client_.report_result(result(given))); }

v1::TrainingResult Replay::result(const YAML::Node& given) const {
  v1::TrainingResult result;
  result.set_time_seconds(1);
  fill(result, renamed(given, {{"epoch", "current_epoch"}, {"cost", "energy_joules"}, {"time", "time_seconds"},
                               {"trial", ""}}));
  *result.mutable_trial() = trial(given);
  return result;
}

Answer Replay::heartbeat(const YAML::Node& given) {
  only(given, {"trial"});
  return answer(client_.heartbeat(trial(given)));
}

Answer Replay::end(const YAML::Node& given) {
  only(given, {"trial", "reason"});
  v1::EndReason reason;
  if (!v1::EndReason_Parse(text(given, "reason"), &reason)) throw Mismatch(text(given, "reason") + " is no EndReason");
  return answer(client_.end_trial(trial(given), reason));
}

Answer Replay::register_job(const YAML::Node& given) { return answer(client_.register_job(job(given))); }

Answer Replay::get(const YAML::Node& given) {
  only(given, {"trial"});
  v1::GetTrialRequest request;
  *request.mutable_trial() = trial(given);
  return answer(client_.call(client_.admin(), &v1::JobAdmin::Stub::GetTrial, request).trial());
}

Answer Replay::get_job(const YAML::Node& given) {
  only(given, {"job_id"});
  return answer(client_.get_job(text(given, "job_id", spec_.job_id())));
}

Answer Replay::delete_job(const YAML::Node& given) {
  only(given, {});
  v1::DeleteJobRequest request;
  request.set_job_id(spec_.job_id());
  return answer(client_.call(client_.admin(), &v1::JobAdmin::Stub::DeleteJob, request).job());
}

Answer Replay::invent(const YAML::Node& given) {
  const auto like = trials_.find(text(given, "like"));
  if (like == trials_.end()) throw Mismatch("no trial is named " + text(given, "like"));
  v1::TrialId id = like->second;
  fill(id, renamed(given, {{"trial", ""}, {"like", ""}}));
  trials_[text(given, "trial")] = id;
  return nullptr;
}

void Replay::until(const YAML::Node& given, const YAML::Node& then) {
  only(given, {"trial", "heartbeat"});
  const auto deadline = std::chrono::steady_clock::now() + kLongestWait;
  YAML::Node of;
  of["trial"] = given["trial"];
  for (;; std::this_thread::sleep_for(kAskEvery)) {
    if (const auto beating = text(given, "heartbeat"); !beating.empty()) client_.heartbeat(trials_.at(beating));
    try {
      return check(*get(of), then);
    } catch (const Mismatch&) {
      if (std::chrono::steady_clock::now() > deadline) throw;
    }
  }
}

const v1::TrialId& Replay::trial(const YAML::Node& given) const {
  const auto found = trials_.find(text(given, "trial"));
  if (found == trials_.end()) throw Mismatch("no trial is named " + text(given, "trial"));
  return found->second;
}
