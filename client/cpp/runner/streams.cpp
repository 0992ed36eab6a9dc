#include "fields.hpp"
#include "replay.hpp"

namespace {

v1::StreamResultsRequest heartbeat_of(const v1::TrialId& trial) {
  v1::StreamResultsRequest request;
  *request.mutable_heartbeat()->mutable_trial() = trial;
  return request;
}

}  // namespace

Answer Replay::open(const YAML::Node& given) {
  only(given, {"trial"});
  auto opened = std::make_unique<Stream>(client_);
  opened->send(heartbeat_of(trial(given)));
  streams_[text(given, "trial")] = std::move(opened);
  return nullptr;
}

Answer Replay::send(const YAML::Node& given) {
  if (given["epoch"]) {
    v1::StreamResultsRequest request;
    *request.mutable_result() = result(given);
    stream(given).send(request);
  } else {
    only(given, {"trial"});
    stream(given).send(heartbeat_of(trial(given)));
  }
  return nullptr;
}

Answer Replay::expect(const YAML::Node& given) {
  only(given, {"trial"});
  auto decision = stream(given).next();
  if (!decision) throw Mismatch("the stream has ended");
  return std::make_unique<v1::Decision>(std::move(*decision));
}

Answer Replay::close(const YAML::Node& given) {
  only(given, {"trial"});
  stream(given).close();
  if (const auto another = stream(given).next()) throw Mismatch("another message came: " + another->message());
  return nullptr;
}

Stream& Replay::stream(const YAML::Node& given) const {
  const auto found = streams_.find(text(given, "trial"));
  if (found == streams_.end()) throw Mismatch("no stream is open for " + text(given, "trial"));
  return *found->second;
}
