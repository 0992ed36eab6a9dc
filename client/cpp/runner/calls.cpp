#include "calls.hpp"

#include <algorithm>
#include <sstream>
#include <vector>

#include "state.hpp"

namespace {

namespace v1 = wattwise::v1;

// Calls with a decoded request.
template <class Request, class Call>
std::function<std::string(const std::string&)> on(Call call) {
  return [call](const std::string& request) { return to_json(call(from_json<Request>(request))); };
}

// Puts the part that the client returns into a response again.
template <class Response>
Response with(const v1::Decision& decision) {
  Response response;
  *response.mutable_decision() = decision;
  return response;
}

template <class Response>
Response with(const v1::Trial& trial) {
  Response response;
  *response.mutable_trial() = trial;
  return response;
}

template <class Response>
Response with(const v1::Job& job) {
  Response response;
  *response.mutable_job() = job;
  return response;
}

// Names as in the behaviour tables, in the order of the enums.
const std::vector<std::string> kLinks = {"tracked", "away", "detached"};
const std::vector<std::string> kProgresses = {"running", "decided", "ended", "settled"};
const std::vector<std::string> kEvents = {"answered", "stopped", "deleted", "unreachable", "unknown", "closed", "delivered"};

template <class Enum>
Enum value_of(const std::vector<std::string>& names, const std::string& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) throw std::runtime_error(name + " is unknown to this runner");
  return static_cast<Enum>(found - names.begin());
}

// The state of a trial after an event.
std::string state_after(const std::string& json) {
  const auto request = from_json<google::protobuf::Struct>(json);
  std::istringstream state(request.fields().at("state").string_value());
  std::string link;
  std::string progress;
  state >> link >> progress;
  const wattwise::TrialState before{value_of<wattwise::Link>(kLinks, link),
                                    value_of<wattwise::Progress>(kProgresses, progress)};
  const std::string& event = request.fields().at("event").string_value();
  const wattwise::TrialState after = before.after(value_of<wattwise::Event>(kEvents, event));
  return "\"" + kLinks[static_cast<int>(after.link)] + " " + kProgresses[static_cast<int>(after.progress)] + "\"";
}

}  // namespace

std::string to_json(const google::protobuf::Message& message) {
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(message, &json).ok()) {
    throw std::runtime_error("not valid in JSON: " + message.DebugString());
  }
  return json;
}

Stream::Stream(wattwise::Client& client) {
  client.prepare(context_, wattwise::new_id());
  call_ = client.trainer().StreamResults(&context_);
}

Stream::~Stream() {
  if (end_) return;
  context_.TryCancel();
  for (v1::StreamResultsResponse rest; call_->Read(&rest);) {
  }
  call_->Finish();
}

void Stream::send(const v1::StreamResultsRequest& request) { call_->Write(request); }

std::string Stream::receive() {
  v1::StreamResultsResponse response;
  if (!end_ && call_->Read(&response)) return to_json(response);
  if (!end_) end_ = call_->Finish();
  if (!end_->ok()) throw wattwise::Error(*end_);
  return "null";
}

void Stream::close() { call_->WritesDone(); }

Calls::Calls(wattwise::Client& client) : client_(client) {
  unary_ = {
      {"RegisterJob", on<v1::RegisterJobRequest>([&](const auto& r) { return client.register_job(r.job()); })},
      {"GetNextBatchSize", on<v1::GetNextBatchSizeRequest>([&](const auto& r) {
         return r.resume() ? client.resume_trial(r.job_id(), r.launch_id())
                           : client.get_next_batch_size(r.job_id(), r.launch_id());
       })},
      {"ReportResult", on<v1::ReportResultRequest>([&](const auto& r) {
         return with<v1::ReportResultResponse>(client.report_result(r.result()));
       })},
      {"Heartbeat", on<v1::HeartbeatRequest>([&](const auto& r) {
         return with<v1::HeartbeatResponse>(client.heartbeat(r.trial()));
       })},
      {"EndTrial", on<v1::EndTrialRequest>([&](const auto& r) {
         return with<v1::EndTrialResponse>(client.end_trial(r.trial(), r.end_reason()));
       })},
      {"LookupTrial", on<v1::LookupTrialRequest>([&](const auto& r) {
         return with<v1::LookupTrialResponse>(client.lookup_trial(r.job_id(), r.launch_id()));
       })},
      {"ImportTrial", on<v1::ImportTrialRequest>([&](const auto& r) { return client.import_trial(r); })},
      {"GetJob", on<v1::GetJobRequest>([&](const auto& r) { return client.get_job(r.job_id()); })},
      {"GetTrial",
       on<v1::GetTrialRequest>([&](const auto& r) { return client.call(&v1::JobReader::Stub::GetTrial, r); })},
      {"DeleteJob",
       on<v1::DeleteJobRequest>([&](const auto& r) { return client.call(&v1::JobControl::Stub::DeleteJob, r); })},
      {"ResetJob", on<v1::ResetJobRequest>([&](const auto& r) {
         return with<v1::ResetJobResponse>(client.reset_job(r.job_id()));
       })},
      {"SetTrialExcluded", on<v1::SetTrialExcludedRequest>([&](const auto& r) {
         return client.set_trial_excluded(r.trial(), r.excluded());
       })},
      {"SetBatchSizeBanned", on<v1::SetBatchSizeBannedRequest>([&](const auto& r) {
         return with<v1::SetBatchSizeBannedResponse>(
             client.set_batch_size_banned(r.job_id(), r.batch_size(), r.banned()));
       })},
      {"SetPinnedBatchSize", on<v1::SetPinnedBatchSizeRequest>([&](const auto& r) {
         std::optional<int> batch_size;
         if (r.has_batch_size()) batch_size = r.batch_size();
         return with<v1::SetPinnedBatchSizeResponse>(client.set_pinned_batch_size(r.job_id(), batch_size));
       })},
      {"ReadmitBatchSize", on<v1::ReadmitBatchSizeRequest>([&](const auto& r) {
         return with<v1::ReadmitBatchSizeResponse>(client.readmit_batch_size(r.job_id(), r.batch_size()));
       })},
      {"SetJobPaused", on<v1::SetJobPausedRequest>([&](const auto& r) {
         return with<v1::SetJobPausedResponse>(client.set_job_paused(r.job_id(), r.paused()));
       })},
      {"RequestBaseline", on<v1::RequestBaselineRequest>([&](const auto& r) {
         return with<v1::RequestBaselineResponse>(client.request_baseline(r.job_id()));
       })},
      {"SetBaselineEvery", on<v1::SetBaselineEveryRequest>([&](const auto& r) {
         return with<v1::SetBaselineEveryResponse>(client.set_baseline_every(r.job_id(), r.every()));
       })},
      {"SetJobPolicy", on<v1::SetJobPolicyRequest>([&](const auto& r) {
         return with<v1::SetJobPolicyResponse>(client.set_job_policy(r.job_id(), r.policy()));
       })},
  };
}

std::string Calls::make(const std::string& call, int stream, const std::string& request) {
  if (call == "state.after") return state_after(request);
  if (call.rfind("stream.", 0) == 0) return on_stream(call, stream, request);
  const auto found = unary_.find(call);
  if (found == unary_.end()) throw std::runtime_error(call + " is unknown to this runner");
  return found->second(request);
}

std::string Calls::on_stream(const std::string& call, int number, const std::string& request) {
  if (call == "stream.open") {
    streams_.try_emplace(number, client_);
    return "{}";
  }
  Stream& stream = streams_.at(number);
  if (call == "stream.receive") return stream.receive();
  if (call == "stream.send") {
    stream.send(from_json<v1::StreamResultsRequest>(request));
  } else if (call == "stream.close") {
    stream.close();
  } else if (call == "stream.cancel") {
    streams_.erase(number);
  } else {
    throw std::runtime_error(call + " is unknown to this runner");
  }
  return "{}";
}
