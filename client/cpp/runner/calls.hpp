// The calls that a runner makes through the client; requests and answers are proto3 JSON.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include "wattwise.hpp"

template <class Message>
Message from_json(const std::string& json) {
  Message message;
  const auto status = google::protobuf::util::JsonStringToMessage(json, &message);
  if (!status.ok()) throw std::runtime_error(status.ToString() + ": " + json);
  return message;
}

std::string to_json(const google::protobuf::Message& message);

// An open StreamResults.
class Stream {
 public:
  explicit Stream(wattwise::Client& client);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Does not wait. receive() reports whether the server has ended the stream.
  void send(const wattwise::v1::StreamResultsRequest& request);
  // Waits for the next message and returns its JSON; null once the stream has ended with OK. Throws wattwise::Error if an
  // error ended it.
  std::string receive();
  // Closes the sending side.
  void close();

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<wattwise::v1::StreamResultsRequest, wattwise::v1::StreamResultsResponse>>
      call_;
  std::optional<grpc::Status> end_;
};

class Calls {
 public:
  explicit Calls(wattwise::Client& client);
  // Makes a call and returns the JSON of its answer.
  std::string make(const std::string& call, int stream, const std::string& request);

 private:
  std::string on_stream(const std::string& call, int stream, const std::string& request);

  wattwise::Client& client_;
  std::map<std::string, std::function<std::string(const std::string& request)>> unary_;
  std::map<int, Stream> streams_;
};
