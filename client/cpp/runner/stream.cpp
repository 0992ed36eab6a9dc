#include "stream.hpp"

#include "fields.hpp"

namespace {
constexpr std::chrono::seconds kTimeout{10};
}

Stream::Stream(wattwise::Client& client) {
  client.prepare(context_, wattwise::new_id());
  call_ = client.trainer().StreamResults(&context_);
  receiver_ = std::thread([this] { receive(); });
}

Stream::~Stream() {
  context_.TryCancel();
  receiver_.join();
}

void Stream::send(const wattwise::v1::StreamResultsRequest& request) { call_->Write(request); }

void Stream::close() { call_->WritesDone(); }

std::optional<wattwise::v1::Decision> Stream::next() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kTimeout, [this] { return !decisions_.empty() || end_; })) {
    throw Mismatch("no message");
  }
  if (decisions_.empty()) {
    if (!end_->ok()) throw wattwise::Error(*end_);
    return std::nullopt;
  }
  const auto decision = decisions_.front();
  decisions_.pop_front();
  return decision;
}

void Stream::receive() {
  wattwise::v1::StreamResultsResponse response;
  while (call_->Read(&response)) {
    const std::lock_guard lock(mutex_);
    decisions_.push_back(response.decision());
    changed_.notify_all();
  }
  const grpc::Status status = call_->Finish();
  const std::lock_guard lock(mutex_);
  end_ = status;
  changed_.notify_all();
}
